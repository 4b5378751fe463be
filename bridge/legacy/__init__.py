"""For old PyCUDA programs: run, check and migrate them; scikit-cuda and texture references."""
