//! Tables of `map` functions, for `sluice drive show --map`.

use serde::Serialize;
use sluice_control::drives::{DriveView, NamespaceView};
use sluice_spec::FunctionSpec;
use sluice_spec::size::Size;
use sluice_spec::table::Table;

/// Consecutive chunks of a drive that lie together on one target, or in a hole.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Stretch {
    nsid: u32,
    /// Index of the function in the stack, topmost first.
    function: usize,
    /// First byte in the function, and the bytes.
    from: u64,
    size: u64,
    /// Index of the target and first byte there; none for a hole.
    target: Option<usize>,
    target_from: Option<u64>,
    /// Path or kind of the target.
    about: String,
}

/// Returns the tables of a drive, neighbours joined.
pub(super) fn stretches(drive: &DriveView) -> Vec<Stretch> {
    let of = |namespace: &NamespaceView| {
        let functions = namespace.functions.iter().enumerate();
        functions.flat_map(|(at, function)| of_function(namespace, at, function)).collect::<Vec<_>>()
    };
    drive.namespaces.iter().flat_map(of).collect()
}

fn of_function(namespace: &NamespaceView, at: usize, function: &FunctionSpec) -> Vec<Stretch> {
    let FunctionSpec::Map(map) = function else { return Vec::new() };
    let table = map.table();
    let chunk = table.chunk();
    let mut found: Vec<Stretch> = Vec::new();
    for (number, entry) in (0..).zip(table.entries()) {
        let (target, target_from) =
            (entry.map(|it| it.target), entry.map(|it| it.chunk.saturating_mul(chunk)));
        if let Some(last) = found.last_mut() {
            let end = last.target_from.map(|from| from.saturating_add(last.size));
            if (last.target, end) == (target, target_from) {
                last.size = last.size.saturating_add(chunk);
                continue;
            }
        }
        let about = target.map_or_else(|| "hole".to_owned(), |target| about(namespace, function, target));
        let from = chunk.saturating_mul(number);
        found.push(Stretch {
            nsid: namespace.nsid,
            function: at,
            from,
            size: chunk,
            target,
            target_from,
            about,
        });
    }
    found
}

/// Returns the path of a target, or its kind.
fn about(namespace: &NamespaceView, function: &FunctionSpec, target: usize) -> String {
    let Some(index) = target.checked_sub(1) else {
        return namespace.path.clone().unwrap_or_else(|| namespace.target.as_str().to_owned());
    };
    function.layers().get(index).map_or_else(String::new, |layer| {
        layer
            .path
            .as_ref()
            .map_or_else(|| layer.target.as_str().to_owned(), |path| path.display().to_string())
    })
}

/// Returns the tables as text.
pub(super) fn text(stretches: &Vec<Stretch>) -> String {
    if stretches.is_empty() {
        return "the drive has no function `map`\n".to_owned();
    }
    let mut table = Table::new(&["NSID", "FUNCTION", "FROM", "SIZE", "TARGET", "FROM THERE", "PATH"]);
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for it in stretches {
        table.row(vec![
            it.nsid.to_string(),
            it.function.to_string(),
            Size(it.from).to_string(),
            Size(it.size).to_string(),
            or_none(it.target.map(|target| target.to_string())),
            or_none(it.target_from.map(|from| Size(from).to_string())),
            it.about.clone(),
        ]);
    }
    table.text()
}
