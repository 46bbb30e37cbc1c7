//! Sets: functions whose members can have labels.

use super::{FunctionSpec, LayerSpec, NamespaceSpec, TargetKind};
use crate::size::Size;
use sluice_functions::SetShape;
use std::path::PathBuf;

/// A set as the configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Index of its function in the stack.
    pub at: usize,
    /// Name of the function.
    pub kind: &'static str,
    /// Bytes of a chunk; zero for functions without chunks.
    pub chunk: u64,
    /// Whether the members must have labels, or must not be examined for labels; none if labels are optional.
    pub labels: Option<bool>,
    /// The devices, or the reason why they cannot have labels.
    pub places: Result<Vec<PlaceSpec>, String>,
}

/// A device of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceSpec {
    pub path: PathBuf,
    pub size: Option<Size>,
    pub block_size: u32,
    pub read_only: bool,
    /// Whether the device has the log of the set, not data.
    pub is_log: bool,
}

impl NamespaceSpec {
    /// Returns the sets in the stack, topmost first, without those in the layers of its functions.
    pub fn sets(&self) -> Vec<SetSpec> {
        let functions = self.functions.iter().enumerate();
        functions.filter_map(|(at, function)| self.set_at(at, function)).collect()
    }

    fn set_at(&self, at: usize, function: &FunctionSpec) -> Option<SetSpec> {
        let SetShape { kind, chunk, labels } = function.shape().set?;
        let has_log = matches!(function, FunctionSpec::Uif(_));
        let (layers, below) = (function.layers(), &self.functions[at + 1..]);
        let mut places = vec![place(self, below, false)];
        for (index, layer) in layers.iter().enumerate() {
            let is_log = has_log && index + 1 == layers.len();
            places.push(place(&layer.as_namespace(), &layer.functions, is_log));
        }
        Some(SetSpec { at, kind, chunk, labels, places: places.into_iter().collect() })
    }

    /// Sets the sizes of the devices of the set at this index, in the order of its places.
    pub fn size_set(&mut self, at: usize, sizes: impl IntoIterator<Item = u64>) {
        let mut sizes = sizes.into_iter().map(Size);
        self.size = sizes.next().or(self.size);
        let layers = self.functions.get_mut(at).map(FunctionSpec::layers_mut).unwrap_or_default();
        for (layer, size) in layers.iter_mut().zip(sizes) {
            layer.size = Some(size);
        }
    }

    /// Returns the stacks of the layers below its functions.
    pub fn stacks_below(&self) -> impl Iterator<Item = Self> {
        self.functions.iter().flat_map(FunctionSpec::layers).map(LayerSpec::as_namespace)
    }
}

/// Returns the device of a stack, with these functions between it and the set.
fn place(stack: &NamespaceSpec, below: &[FunctionSpec], is_log: bool) -> Result<PlaceSpec, String> {
    if let Some(function) = below.iter().find(|function| !function.layers().is_empty()) {
        return Err(format!("a member is a {} itself, whose own members can have labels", function.name()));
    }
    match (&stack.path, stack.target) {
        (Some(path), TargetKind::File) => Ok(PlaceSpec {
            path: path.clone(),
            size: stack.size,
            block_size: stack.block_size,
            read_only: stack.read_only,
            is_log,
        }),
        (_, target) => {
            Err(format!("a member has the target `{}`, and only a `file` has a label", target.as_str()))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{DriveSpec, SetSpec};

    fn sets(functions: &str) -> Vec<SetSpec> {
        let text = format!(
            r#"{{"name": "a", "namespaces": [{{"target": "file", "path": "/0", "size": "1MiB", "functions": [{functions}]}}]}}"#
        );
        let spec: DriveSpec = serde_json::from_str(&text).expect("a drive");
        spec.check().expect("it is right");
        spec.namespaces[0].sets()
    }

    const LAYER: &str = r#"{"target": "file", "path": "/1", "size": "2MiB"}"#;

    #[test]
    fn devices_come_in_the_order_of_the_layers() {
        let found = sets(&format!(
            r#"{{"kind": "stripe", "labels": true, "layers": [{LAYER}]}}, {{"kind": "pass"}}"#
        ));
        assert_eq!(
            (found.len(), found[0].kind, found[0].chunk, found[0].labels),
            (1, "stripe", 65536, Some(true))
        );
        let places = found[0].places.as_ref().expect("files");
        assert_eq!(
            places.iter().map(|it| it.size.map(|size| size.0)).collect::<Vec<_>>(),
            [Some(1 << 20), Some(2 << 20)]
        );
        let log = r#"{"target": "file", "path": "/2", "size": "1MiB"}"#;
        let found = sets(&format!(r#"{{"kind": "uif", "function": "mirror", "layers": [{LAYER}, {log}]}}"#));
        let places = found[0].places.as_ref().expect("files");
        assert_eq!(places.iter().map(|it| it.is_log).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn only_files_have_labels() {
        let found = sets(r#"{"kind": "concat", "layers": [{"target": "memory", "size": "1MiB"}]}"#);
        assert!(found[0].places.as_ref().expect_err("memory").contains("memory"));
        let found = sets(&format!(
            r#"{{"kind": "concat", "layers": [{LAYER}]}}, {{"kind": "stripe", "layers": [{LAYER}]}}"#
        ));
        assert!(
            found[0].places.as_ref().is_err_and(|words| words.contains("stripe")) && found[1].places.is_ok()
        );
    }

    #[test]
    fn labels_are_for_sets() {
        let text = r#"{"name": "a", "namespaces": [{"target": "memory", "size": "1MiB",
                       "functions": [{"kind": "uif", "function": "encrypt", "labels": true}]}]}"#;
        let spec: DriveSpec = serde_json::from_str(text).expect("a drive");
        let fault = spec.check().expect_err("no set");
        assert!(format!("{fault:?}").contains("labels"), "{fault:?}");
    }
}
