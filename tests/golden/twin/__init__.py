"""An independent PyTorch float64 twin of the mixers and the language model: slow, literal, differentiable."""
