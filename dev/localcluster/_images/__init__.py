"""How the images of the local cluster are built; `dev.localcluster.images` is the way in."""
