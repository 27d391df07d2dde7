"""Lane detection by affinity fields: scenes, maps, network, training, decoding, F1. Only `network`, `training` and
`stages` need PyTorch.
"""
