//! Records of drives' pools.

use crate::state::{HostState, Pooled};
use sluice_controller::Attachment;
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;

/// Returns the record of a drive's pool.
pub(in crate::drives) fn of<'a>(saved: &'a HostState, drive: &str) -> Option<&'a Pooled> {
    saved.pools.iter().find(|it| it.drive == drive)
}

pub(super) fn of_mut<'a>(saved: &'a mut HostState, drive: &str) -> &'a mut Pooled {
    let at = saved.pools.iter().position(|it| it.drive == drive).unwrap_or_else(|| {
        saved.pools.push(Pooled { drive: drive.to_owned(), ..Pooled::default() });
        saved.pools.len() - 1
    });
    &mut saved.pools[at]
}

/// Returns the initial block size of a namespace, if the drive has the namespace.
pub(in crate::drives) fn first_block_size(spec: &DriveSpec, saved: &HostState, nsid: u32) -> Option<u32> {
    let declared = spec.namespace(nsid).map(|namespace| namespace.block_size);
    declared.or_else(|| Some(of(saved, &spec.name)?.namespace(nsid)?.block_size))
}

/// Returns whether a drive has a namespace, declared or created by a host.
pub(in crate::drives) fn has(spec: &DriveSpec, saved: &HostState, nsid: u32) -> bool {
    first_block_size(spec, saved, nsid).is_some()
}

/// Checks that a drive can have the namespaces that hosts created.
pub(in crate::drives) fn check(spec: &DriveSpec, saved: &HostState) -> Result<(), ApiError> {
    let created = of(saved, &spec.name).map_or(&[][..], |pooled| &pooled.created);
    let name = &spec.name;
    if let Some(first) = created.first().filter(|_| spec.pool.is_none()) {
        let nsid = first.nsid;
        return Err(ApiError::conflict(format!("a host has created namespace {nsid} of drive `{name}` in a pool that the drive does not have any more"))
            .hint("give the drive its pool back; a host can delete the namespace then (nvme delete-ns)"));
    }
    if let Some(twice) = created.iter().find(|it| spec.namespace(it.nsid).is_some()) {
        let nsid = twice.nsid;
        return Err(ApiError::conflict(format!(
            "a host has created namespace {nsid} of drive `{name}`, which the configuration declares now"
        ))
        .hint("take it out of the configuration; a host can delete its own then (nvme delete-ns)"));
    }
    Ok(())
}

pub(in crate::drives) fn note_deletion(saved: &mut HostState, drive: &str, nsids: &[u32]) {
    of_mut(saved, drive).remove(nsids);
    // Records of deleted namespaces must not apply to the next ones with their NSIDs.
    saved.formatted.retain(|it| it.drive != drive || !nsids.contains(&it.nsid));
    saved.uncorrectable.retain(|it| it.drive != drive || !nsids.contains(&it.nsid));
    saved.reserved.retain(|it| it.drive != drive || !nsids.contains(&it.nsid));
}

pub(in crate::drives) fn note_attachment(
    saved: &mut HostState,
    drive: &str,
    nsid: u32,
    attachment: &Attachment,
) {
    of_mut(saved, drive).attach(nsid, attachment);
}
