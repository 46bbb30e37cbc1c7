//! The functions of a drive as they are counted, and of a namespace as they stand.

use super::{DriveSpec, FunctionSpec, NamespaceSpec, PathSpec, UifSpec};
use serde::{Deserialize, Serialize};

/// What of a namespace changes when a function is moved, attached or detached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrangement {
    /// As in [`NamespaceSpec::functions`].
    pub functions: Vec<FunctionSpec>,
    /// As in [`NamespaceSpec::paths`].
    pub paths: Vec<PathSpec>,
}

impl NamespaceSpec {
    pub fn arrangement(&self) -> Arrangement {
        Arrangement { functions: self.functions.clone(), paths: self.paths.clone() }
    }

    pub fn arrange(&mut self, arrangement: Arrangement) {
        let Arrangement { functions, paths } = arrangement;
        (self.functions, self.paths) = (functions, paths);
    }
}

impl DriveSpec {
    /// The function behind the function SDK that is listed under this number, with its NSID: they are counted from
    /// 1, namespace after namespace, its stack before its further paths, and after each function those in the
    /// layers below it.
    pub fn uif_mut(&mut self, number: usize) -> Option<(u32, &mut UifSpec)> {
        let mut left = number.checked_sub(1)?;
        for (nsid, namespace) in (1..).zip(&mut self.namespaces) {
            let NamespaceSpec { functions, paths, .. } = namespace;
            let stacks = paths.iter_mut().map(|path| &mut path.functions);
            for functions in std::iter::once(functions).chain(stacks) {
                if let Some(uif) = nth(functions, &mut left) {
                    return Some((nsid, uif));
                }
            }
        }
        None
    }
}

/// The function of this number among these and those below them; else as many less are left to go.
fn nth<'a>(functions: &'a mut [FunctionSpec], left: &mut usize) -> Option<&'a mut UifSpec> {
    for function in functions {
        let FunctionSpec::Uif(uif) = function else { continue };
        if *left == 0 {
            return Some(uif);
        }
        *left -= 1;
        for layer in &mut uif.layers {
            if let Some(found) = nth(&mut layer.functions, left) {
                return Some(found);
            }
        }
    }
    None
}
