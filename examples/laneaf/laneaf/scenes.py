"""Synthetic road scenes: a flat road in perspective with 2 to 4 lane lines, and where these lines are.

A camera `height` metres above the road sees the ground at distance z in row v = horizon + focal · height / z, and a
point X metres to the right in column u = centre + focal · X / z. Line i lies at X = offset + yaw · z + bend / 2 · z².
Everything that a scene holds follows from its number: the same number, the same scene.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Lane = npt.NDArray[np.float64]  # [K, 2]: x and y in pixels, from the bottom of the image upwards
Plane = npt.NDArray[np.float64]

HEIGHT, WIDTH = 96, 256
STEP = 4  # pixels between the rows of a lane: one cell of the network's maps
FAR = 42.0  # metres: lines go on, but are labelled to here
LEAST_ROWS = 6  # a line that is seen in fewer rows isn't painted
HELD_OUT = 1_000_000  # numbers from here on are for testing, those below for training


@dataclass(frozen=True)
class Scene:
    """`image` u8[H, W, 3] (RGB), and the lane lines in it, from left to right."""

    image: Image
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Camera:
    """Where the camera is and how the road runs before it; pixels, metres, radians, 1/metre."""

    rows: int
    columns: int
    focal: float
    horizon: float
    height: float
    yaw: float
    bend: float
    side: float

    @staticmethod
    def at_random(rng: np.random.Generator, rows: int, columns: int) -> Camera:
        """Small cars and vans, straight roads and bends of 150 metres."""
        return Camera(
            rows,
            columns,
            focal=columns * rng.uniform(0.8, 1.0),
            horizon=rows * rng.uniform(0.26, 0.38),
            height=rng.uniform(1.2, 1.8),
            yaw=rng.normal(0, 0.03),
            bend=rng.choice([0.0, 1.0]) * rng.uniform(-1, 1) / 150,
            side=rng.uniform(-0.8, 0.8),
        )

    def distance(self, v: Plane) -> Plane:
        """Metres to the ground that a row sees; infinite above the horizon."""
        below = v - self.horizon
        return np.where(below > 0.5, self.focal * self.height / np.maximum(below, 0.5), np.inf)

    def road(self, z: Plane) -> Plane:
        """Where the middle of the road is at a distance, in metres to the right."""
        return self.yaw * z + self.bend / 2 * z**2 - self.side

    def column(self, right: Plane, z: Plane) -> Plane:
        """The column of a point on the ground."""
        return self.columns / 2 + self.focal * right / z

    def lane(self, offset: float) -> Lane:
        """The line `offset` metres beside the road's middle, at the centres of the maps' rows."""
        y = np.arange(self.rows // STEP)[::-1] * STEP + (STEP - 1) / 2
        z = self.distance(y)
        with np.errstate(invalid="ignore"):
            x = self.column(self.road(z) + offset, z)
        seen = (z <= FAR) & (x >= 0) & (x <= self.columns - 1)
        return np.stack([x[seen], y[seen]], axis=1)


def scene(number: int, rows: int = HEIGHT, columns: int = WIDTH) -> Scene:
    """The scene of this number, `rows` by `columns` pixels (multiples of 8)."""
    rng = np.random.default_rng([20, number])
    while True:
        camera = Camera.at_random(rng, rows, columns)
        offsets = _offsets(rng)
        lanes = [camera.lane(o) for o in offsets]
        if all(len(lane) >= LEAST_ROWS for lane in lanes):
            return Scene(Painter(rng, camera, offsets).image(), tuple(lanes))


def scenes(first: int, count: int, rows: int = HEIGHT, columns: int = WIDTH) -> list[Scene]:
    """`count` scenes from number `first` on."""
    return [scene(first + i, rows, columns) for i in range(count)]


def _offsets(rng: np.random.Generator) -> list[float]:
    """Lines beside the road's middle, in metres: the own lane's two, and up to one on each side."""
    width = rng.uniform(3.2, 3.8)
    places = [-1.5, -0.5, 0.5, 1.5]
    chosen = places[int(rng.integers(0, 2)) : 4 - int(rng.integers(0, 2))]
    return [width * p for p in chosen]


class Painter:
    """Paints a scene from far to near: sky, ground, road, lines, shadows, cars, light."""

    def __init__(self, rng: np.random.Generator, camera: Camera, offsets: list[float]) -> None:
        self.rng, self.camera, self.offsets = rng, camera, offsets
        v, u = np.mgrid[0 : camera.rows, 0 : camera.columns].astype(np.float64)
        self.v, self.u = v, u
        z = camera.distance(v)
        self.ground = np.isfinite(z)
        self.z = np.where(self.ground, z, 1e3)
        self.right = (u - camera.columns / 2) * self.z / camera.focal - camera.road(self.z)
        self.pixel = self.z / camera.focal  # metres that a pixel is wide at its distance
        self.wear = self._texture(0.15)

    def image(self) -> Image:
        """The finished picture."""
        canvas = self._sky()
        canvas = _mix(canvas, self._land(), self.ground)
        canvas = _mix(canvas, self._asphalt(), self._road())
        for offset in self.offsets:
            canvas = _mix(canvas, self._paint(), self._line(offset))
        canvas *= self._shadows()[..., None]
        for z in sorted(self.rng.uniform(9, 40, int(self.rng.integers(0, 3))), reverse=True):
            self._car(canvas, float(z))
        return self._exposed(self._haze(canvas))

    def _sky(self) -> Plane:
        grey, blue = self.rng.uniform(0.4, 0.8), self.rng.uniform(0.0, 0.25)
        top = np.array([grey - blue, grey - blue / 3, grey + blue / 2])
        low = self.rng.uniform(0.75, 0.95) + self.rng.normal(0, 0.03, 3)
        t = np.clip(self.v / max(self.camera.horizon, 1), 0, 1)[..., None]
        return top * (1 - t) + low * t

    def _land(self) -> Plane:
        colour = [[0.30, 0.42, 0.20], [0.52, 0.46, 0.34], [0.45, 0.45, 0.44]][int(self.rng.integers(0, 3))]
        return np.array(colour) * self._texture(0.2)[..., None]

    def _asphalt(self) -> Plane:
        grey = self.rng.uniform(0.25, 0.45) + self.rng.normal(0, 0.012, 3)
        return grey * self._texture(0.1)[..., None]

    def _texture(self, strength: float) -> Plane:
        """Grain about 1: soft patches of two sizes."""
        rows, columns = self.v.shape
        total = np.ones((rows, columns))
        for cells in (5, 30):
            coarse = self.rng.normal(0, strength, (cells, 2 * cells))
            across = np.stack(
                [np.interp(np.linspace(0, 2 * cells - 1, columns), np.arange(2 * cells), r) for r in coarse]
            )
            y = np.linspace(0, cells - 1.001, rows)
            i = y.astype(int)
            a = (y - i)[:, None]
            total += across[i] * (1 - a) + across[i + 1] * a
        return np.clip(total, 0.2, 2)

    def _road(self) -> Plane:
        """Share of each pixel that is road: from the outer lines and a shoulder on."""
        left = self.offsets[0] - self.rng.uniform(0.4, 2.5)
        end = self.offsets[-1] + self.rng.uniform(0.4, 2.5)
        return self._within(left, end) * self.ground

    def _within(self, low: float, high: float) -> Plane:
        """Share of each pixel between two distances from the road's middle."""
        half, middle = (high - low) / 2, (high + low) / 2
        return np.clip((half - np.abs(self.right - middle)) / self.pixel + 0.5, 0, 1)

    def _paint(self) -> Plane:
        colour = [0.92, 0.92, 0.9] if self.rng.random() < 0.75 else [0.88, 0.7, 0.25]
        return np.array(colour) * self.rng.uniform(0.75, 1.05) * self.wear[..., None]

    def _line(self, offset: float) -> Plane:
        """Share of each pixel that a line covers: solid, or dashes with gaps between; worn here and there."""
        half = self.rng.uniform(0.07, 0.13)
        cover = np.minimum(self._within(offset - half, offset + half), 2 * half / self.pixel)
        if self.rng.random() < 0.55:
            dash, gap = self.rng.uniform(2.5, 4.5), self.rng.uniform(2.0, 5.0)
            phase = (self.z + self.rng.uniform(0, 20)) % (dash + gap)
            cover = cover * np.clip((dash / 2 - np.abs(phase - dash / 2)) / (self.pixel * 4) + 0.5, 0, 1)
        return cover * np.clip(self.wear, 0.35, 1) * self.ground

    def _shadows(self) -> Plane:
        """What light falls on each pixel: soft dark patches across the road, as of trees and bridges."""
        light = np.ones(self.v.shape)
        for _ in range(int(self.rng.integers(0, 4))):
            z0, depth = self.rng.uniform(5, 30), self.rng.uniform(0.5, 4)
            x0, reach, slope = self.rng.uniform(-6, 6), self.rng.uniform(1, 9), self.rng.normal(0, 0.5)
            far = np.abs(self.z - z0 - slope * self.right) / depth
            aside = np.abs(self.right - x0) / reach
            inside = np.clip(4 * (1 - np.maximum(far, aside)), 0, 1)
            light *= 1 - inside * self.rng.uniform(0.25, 0.6) * self.ground
        return light

    def _car(self, canvas: Plane, z: float) -> None:
        """A car ahead, in a lane: body, window, lights, and the shadow under it."""
        camera, rng = self.camera, self.rng
        k = int(rng.integers(0, len(self.offsets) - 1))
        middle = (self.offsets[k] + self.offsets[k + 1]) / 2 + rng.normal(0, 0.2)
        z_plane = np.array(z)
        u = float(camera.column(camera.road(z_plane) + middle, z_plane))
        foot = camera.horizon + camera.focal * camera.height / z
        unit = camera.focal / z
        body = np.clip(rng.uniform(0.05, 0.8) + rng.normal(0, 0.12, 3), 0.02, 0.9)

        def box(x0: float, x1: float, y0: float, y1: float, colour: Plane) -> None:
            """A rectangle in metres: right of the car's middle, above the road."""
            a, b = (int(np.clip(round(u + unit * x), 0, camera.columns)) for x in (x0, x1))
            top, low = (int(np.clip(round(foot - unit * y), 0, camera.rows)) for y in (y1, y0))
            canvas[top:low, a:b] = colour

        box(-0.95, 0.95, -0.25, 0.1, np.full(3, 0.06))
        box(-0.9, 0.9, 0.1, 0.95, body)
        box(-0.7, 0.7, 0.95, 1.45, body * 0.8)
        box(-0.6, 0.6, 1.0, 1.35, np.array([0.12, 0.14, 0.17]))
        for side in (-0.85, 0.6):
            box(side, side + 0.25, 0.55, 0.75, np.array([0.75, 0.08, 0.06]))

    def _haze(self, canvas: Plane) -> Plane:
        share = 1 - np.exp(-self.z / self.rng.uniform(60, 400))
        return _mix(canvas, np.full_like(canvas, self.rng.uniform(0.6, 0.85)), share * self.ground)

    def _exposed(self, canvas: Plane) -> Image:
        """Exposure, colour of the light, blur of the lens, noise of the sensor, eight bits."""
        rng = self.rng
        canvas = np.clip(canvas, 0, None) ** rng.uniform(0.8, 1.3) * rng.uniform(0.45, 1.15)
        canvas = canvas * (1 + rng.normal(0, 0.05, 3))
        soft = rng.uniform(0, 0.25)
        for axis in (0, 1):
            canvas = canvas * (1 - 2 * soft) + soft * (np.roll(canvas, 1, axis) + np.roll(canvas, -1, axis))
        canvas = canvas + rng.normal(0, rng.uniform(0.005, 0.04), canvas.shape)
        return np.clip(np.round(255 * canvas), 0, 255).astype(np.uint8)


def _mix(under: Plane, over: Plane, share: Plane) -> Plane:
    weight = np.asarray(share, np.float64)[..., None]
    return under * (1 - weight) + over * weight
