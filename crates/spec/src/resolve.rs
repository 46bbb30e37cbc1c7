//! Resolution of relative paths against the folder of the file that contains them.

use super::{FunctionSpec, LayerSpec, NvmeSpec, UifSpec};
use std::path::{Path, PathBuf};

/// Resolves relative paths of a target, and of the functions over it, against `folder`.
pub(super) fn resolve(
    folder: &Path,
    files: [&mut Option<PathBuf>; 2],
    nvme: &mut Option<NvmeSpec>,
    functions: &mut [FunctionSpec],
) {
    files.into_iter().flatten().for_each(|file| *file = folder.join(&file));
    let places = nvme.iter_mut().flat_map(|device| [&mut device.vfio_user, &mut device.generic]);
    places.flatten().for_each(|place| *place = folder.join(&place));
    for function in functions {
        function.resolve_paths(folder);
    }
}

impl FunctionSpec {
    /// Resolves relative paths of the layers below against `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        resolve_layers(folder, self.layers_mut());
    }
}

impl UifSpec {
    /// Resolves relative paths of the layers below against `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        resolve_layers(folder, &mut self.layers);
    }
}

fn resolve_layers(folder: &Path, layers: &mut [LayerSpec]) {
    for LayerSpec { path, lease, nvme, functions, .. } in layers {
        resolve(folder, [path, lease], nvme, functions);
    }
}
