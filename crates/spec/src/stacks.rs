//! All targets of a drive in one list, wherever they are in its description.

use super::{DriveSpec, NamespaceSpec, Way};

/// A target with the functions over it.
#[derive(Clone, Debug)]
pub struct StackSpec {
    /// Place of the stack in the drive, in words.
    pub about: String,
    pub spec: NamespaceSpec,
}

impl DriveSpec {
    /// Returns the stacks of its namespaces, of their further paths, and of the layers below functions.
    pub fn stacks(&self) -> Vec<StackSpec> {
        let mut found = Vec::new();
        for (nsid, namespace) in self.numbered() {
            let about = format!("namespace {nsid}");
            for path in &namespace.paths {
                if let Ok(Way::Own(own)) = path.way(namespace) {
                    collect(format!("path `{}` of {about}", path.name), *own, &mut found);
                }
            }
            collect(about, namespace.clone(), &mut found);
        }
        found
    }
}

/// Adds a stack, and those of the layers below its functions.
fn collect(about: String, spec: NamespaceSpec, found: &mut Vec<StackSpec>) {
    for function in &spec.functions {
        for (number, layer) in (1..).zip(function.layers()) {
            let about = format!("layer {number} of {} in {about}", function.name());
            collect(about, layer.as_namespace(), found);
        }
    }
    found.push(StackSpec { about, spec });
}
