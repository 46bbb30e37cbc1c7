//! Space of shared objects and of the volumes of thin pools.

use super::{Family, escaped, family};
use sluice_control::drives::{SharedView, VolumeView};

const OBJECTS: [Family<'static, SharedView>; 4] = [
    family("sluice_shared_size_bytes", "gauge", "Bytes of the object.", |it| it.size.0),
    family(
        "sluice_shared_free_bytes",
        "gauge",
        "Bytes that no drive has, neither in use nor in advance.",
        |it| it.free.0,
    ),
    family(
        "sluice_shared_bad_bytes",
        "gauge",
        "Bytes that the device of a thin pool does not write, and that are left out.",
        |it| it.bad.0,
    ),
    family("sluice_shared_users", "gauge", "Namespaces that use the object.", |it| it.users as u64),
];

/// A volume with the name of its pool.
type Volume = (String, VolumeView);

const VOLUMES: [Family<'static, Volume>; 2] = [
    family("sluice_volume_size_bytes", "gauge", "Bytes of the volume.", |(_, it)| it.size.0),
    family("sluice_volume_allocated_bytes", "gauge", "Bytes of its extents.", |(_, it)| it.allocated.0),
];

/// Writes the metrics of shared objects.
pub(super) fn write(out: &mut String, shared: &[SharedView]) {
    for family in &OBJECTS {
        family.write(out, shared, |it| format!("shared=\"{}\",type=\"{}\"", it.name, it.kind.as_str()));
    }
    let of = |it: &SharedView| it.volumes.iter().map(|volume| (it.name.clone(), volume.clone())).collect();
    let volumes: Vec<Volume> = shared.iter().flat_map::<Vec<Volume>, _>(of).collect();
    for family in &VOLUMES {
        family
            .write(out, &volumes, |(name, it)| format!("shared=\"{name}\",volume=\"{}\"", escaped(&it.name)));
    }
}
