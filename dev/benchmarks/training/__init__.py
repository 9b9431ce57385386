"""The training library beside plain torch, Accelerate and Lightning Fabric; its checkpoints and its ways to communicate less."""
