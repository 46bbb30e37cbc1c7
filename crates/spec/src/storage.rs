//! Places where the data of a drive ends, target by target.

use super::{DriveSpec, FunctionSpec, ImageFormat, NamespaceSpec, TargetKind, Way};
use std::path::PathBuf;

/// A target of a drive whose data outlives the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub nsid: u32,
    /// Name in words; the path of a file.
    pub name: String,
    pub path: Option<PathBuf>,
    /// Whether the daemon creates the file if it does not exist.
    pub may_make: bool,
    pub read_only: bool,
    /// Whether other storage at this place would be other data of the namespace.
    pub is_content: bool,
}

impl DriveSpec {
    /// Returns the targets of all namespaces, and of the layers below their functions, without those of a
    /// pool.
    pub fn locations(&self) -> Vec<Location> {
        let mut found = Vec::new();
        for (nsid, namespace) in self.numbered() {
            walk(namespace, nsid, true, &mut found);
        }
        found
    }

    /// Returns the drive with the files of these paths marked as raw: they are served as they are, whatever
    /// they begin with.
    pub fn with_raw(&self, paths: &[PathBuf]) -> Self {
        let mut spec = self.clone();
        for stack in &mut spec.namespaces {
            if stack.target == TargetKind::File {
                say_raw(&mut stack.format, stack.path.as_ref(), paths);
            }
            say_raw_below(&mut stack.functions, paths);
            for path in &mut stack.paths {
                if path.target == Some(TargetKind::File) {
                    say_raw(&mut path.format, path.path.as_ref(), paths);
                }
                say_raw_below(&mut path.functions, paths);
            }
        }
        spec
    }

    /// Returns whether a function keeps copies of the namespace, so that its data survives the exchange of
    /// one target.
    pub fn has_copies(&self, nsid: u32) -> bool {
        self.namespace(nsid).is_some_and(|namespace| namespace.functions.iter().any(keeps_copies))
    }

    /// Returns whether data of the namespace is in the daemon's memory only.
    pub fn is_in_memory(&self, nsid: u32) -> bool {
        let composed = |functions: &[FunctionSpec]| {
            let layers = functions.iter().filter(|it| it.is_composed()).flat_map(FunctionSpec::layers);
            layers.into_iter().any(|layer| layer.target == TargetKind::Memory)
        };
        self.namespace(nsid).is_some_and(|namespace| {
            !self.has_copies(nsid)
                && (matches!(namespace.target, TargetKind::Memory | TargetKind::MemoryPool)
                    || composed(&namespace.functions))
        })
    }
}

fn say_raw_below(functions: &mut [FunctionSpec], paths: &[PathBuf]) {
    for layer in functions.iter_mut().flat_map(FunctionSpec::layers_mut) {
        if layer.target == TargetKind::File {
            say_raw(&mut layer.format, layer.path.as_ref(), paths);
        }
        say_raw_below(&mut layer.functions, paths);
    }
}

fn say_raw(format: &mut Option<ImageFormat>, path: Option<&PathBuf>, paths: &[PathBuf]) {
    if path.is_some_and(|path| paths.contains(path)) {
        *format = Some(ImageFormat::Raw);
    }
}

fn keeps_copies(function: &FunctionSpec) -> bool {
    !function.copies().is_empty()
}

/// Adds the targets of a stack. `is_content` is false for a copy, and for data that a function keeps besides.
fn walk(stack: &NamespaceSpec, nsid: u32, is_content: bool, found: &mut Vec<Location>) {
    found.extend(location(stack, nsid, is_content));
    for function in &stack.functions {
        let is_content = is_content && function.is_composed();
        for layer in function.layers() {
            walk(&layer.as_namespace(), nsid, is_content, found);
        }
    }
    for path in &stack.paths {
        if let Ok(Way::Own(own)) = path.way(stack) {
            walk(&own, nsid, is_content, found);
        }
    }
}

fn location(stack: &NamespaceSpec, nsid: u32, is_content: bool) -> Option<Location> {
    let path = match stack.target {
        TargetKind::Null | TargetKind::Memory | TargetKind::MemoryPool => return None,
        TargetKind::File => Some(stack.path.clone()?),
        TargetKind::Thin | TargetKind::Nvme | TargetKind::NvmeTcp => None,
    };
    let name = path.as_ref().map_or_else(|| stack.target_in_words(), |path| path.display().to_string());
    let may_make = path.is_some() && stack.size.is_some() && !stack.read_only;
    Some(Location { nsid, name, path, may_make, read_only: stack.read_only, is_content })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(namespace: &str) -> DriveSpec {
        serde_json::from_str(&format!(r#"{{"name": "a", "namespaces": [{namespace}]}}"#)).expect("a drive")
    }

    #[test]
    fn every_file_of_a_drive_counts_and_copies_are_no_content() {
        let layer = |path: &str| format!(r#"{{"target": "file", "path": "/{path}", "size": "1MiB"}}"#);
        let spec = spec(&format!(
            r#"{{"target": "file", "path": "/whole", "size": "1MiB", "functions": [
                {{"kind": "concat", "layers": [{}]}},
                {{"kind": "uif", "function": "mirror", "layers": [{}, {}]}}],
                "paths": [{{"name": "p", "target": "file", "path": "/own"}}]}}"#,
            layer("behind"),
            layer("copy"),
            layer("log")
        ));
        let found = spec.locations();
        let of = |name: &str| found.iter().find(|it| it.name == name).expect("it is one").is_content;
        assert_eq!(found.len(), 5);
        assert!(of("/whole") && of("/behind") && of("/own") && !of("/copy") && !of("/log"));
        assert!(found.iter().all(|it| it.may_make) && spec.has_copies(1) && !spec.is_in_memory(1));
    }

    #[test]
    fn what_is_not_made_is_not_to_be_made() {
        let found = spec(r#"{"target": "file", "path": "/it"}"#).locations();
        assert!(!found[0].may_make);
        let found =
            spec(r#"{"target": "file", "path": "/it", "size": "1MiB", "read_only": true}"#).locations();
        assert!(!found[0].may_make && found[0].read_only);
        let memory = spec(r#"{"target": "memory", "size": "1MiB"}"#);
        assert!(memory.locations().is_empty() && memory.is_in_memory(1));
    }
}
