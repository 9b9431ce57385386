"""How the images of the local cluster are built; `localcluster.images` is the way in."""
