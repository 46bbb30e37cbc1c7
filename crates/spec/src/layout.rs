//! Numbers of a drive's functions, and places of a namespace's functions in its stack.

use super::{DriveSpec, Fault, FunctionSpec, NamespaceSpec, PathSpec, UifSpec};
use serde::{Deserialize, Serialize};

/// Part of a namespace that changes when a function is moved, attached or detached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Functions, as in [`NamespaceSpec::functions`].
    pub functions: Vec<FunctionSpec>,
    /// Paths, as in [`NamespaceSpec::paths`].
    pub paths: Vec<PathSpec>,
}

impl NamespaceSpec {
    pub fn layout(&self) -> Layout {
        Layout { functions: self.functions.clone(), paths: self.paths.clone() }
    }

    pub fn set_layout(&mut self, layout: Layout) {
        let Layout { functions, paths } = layout;
        (self.functions, self.paths) = (functions, paths);
    }

    /// Puts a function below `below` of the existing functions; returns false if there are fewer. Further
    /// paths keep their entry into the stack.
    pub fn attach(&mut self, below: usize, function: FunctionSpec) -> bool {
        if below > self.functions.len() {
            return false;
        }
        self.functions.insert(below, function);
        let entries = self.paths.iter_mut().filter_map(|path| path.below.as_mut());
        entries.filter(|entry| **entry >= below).for_each(|entry| *entry += 1);
        true
    }

    /// Takes out the function below `at` others. A path that entered this function enters the layer below it.
    ///
    /// # Errors
    /// A path bypasses this function only. Without the function it would be the whole stack, which is the
    /// first path.
    pub fn detach(&mut self, at: usize) -> Result<(), Fault> {
        if let Some(path) = self.paths.iter().find(|path| at == 0 && path.below == Some(1)) {
            return Err(Fault::at_key(
                "below",
                format!("the path `{}` passes by this function, and would pass by nothing", path.name),
            )
            .hint("remove the path where the drive is declared, and restart the daemon"));
        }
        self.functions.remove(at);
        let entries = self.paths.iter_mut().filter_map(|path| path.below.as_mut());
        entries.filter(|entry| **entry > at).for_each(|entry| *entry -= 1);
        Ok(())
    }
}

impl DriveSpec {
    /// Returns the function behind the function SDK that has this number, with its NSID.
    ///
    /// Numbers start at 1 and follow the namespaces. The stack of a namespace comes before its further paths.
    /// After each function come those in the layers below it.
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

    /// Returns the NSID of the function with this number, and its index in the namespace's own stack; `None`
    /// if the function is elsewhere.
    pub fn place_of(&self, number: usize) -> Option<(u32, usize)> {
        let mut next = 1;
        for (nsid, namespace) in self.numbered() {
            for (at, function) in namespace.functions.iter().enumerate() {
                if next == number && matches!(function, FunctionSpec::Uif(_)) {
                    return Some((nsid, at));
                }
                next += uifs(std::slice::from_ref(function));
            }
            next += namespace.paths.iter().map(|path| uifs(&path.functions)).sum::<usize>();
        }
        None
    }
}

/// Counts the functions behind the function SDK among `functions` and in the layers below them.
fn uifs(functions: &[FunctionSpec]) -> usize {
    let of = |function: &FunctionSpec| match function {
        FunctionSpec::Uif(uif) => 1 + uif.layers.iter().map(|layer| uifs(&layer.functions)).sum::<usize>(),
        _ => 0,
    };
    functions.iter().map(of).sum()
}

/// Returns function number `left` among `functions` and those below them. Otherwise `left` is reduced by
/// their count.
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
