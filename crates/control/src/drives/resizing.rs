//! New sizes of namespaces.

use super::{DriveView, Drives, Entry, Origin};
use crate::state::{Resized, Saved};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, FunctionSpec, TargetKind};

impl Drives {
    /// Resizes the target of a namespace. With `shrink`, the data behind the new end may be discarded.
    pub fn resize(&self, name: &str, nsid: u32, size: Size, shrink: bool) -> Result<DriveView, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let running = entry.running.clone()?;
        check_resize(&entry, nsid, size)?;
        self.check_storage(&entry.spec, Some(nsid))?;
        let now = running.target_size(nsid)?;
        if !shrink && size < now {
            return Err(ApiError::conflict(format!(
                "{size} is less than the {now} of namespace {nsid}'s target"
            ))
            .hint("what lies behind is lost: to do it all the same, say so (--shrink)"));
        }
        let declared = self.declared(name);
        self.store_and_do(
            name,
            |saved| remember_size(saved, &entry, declared.as_ref(), nsid, size),
            || running.resize(nsid, size),
        )?;
        self.amend(name, |entry| {
            entry.spec.namespace_mut(nsid).into_iter().for_each(|namespace| namespace.size = Some(size));
        });
        tracing::info!("namespace {nsid} of drive {name} now has {size}");
        self.show(name)
    }
}

fn check_resize(entry: &Entry, nsid: u32, size: Size) -> Result<(), ApiError> {
    let Some(namespace) = entry.spec.namespace(nsid) else {
        let (name, last) = (&entry.spec.name, entry.spec.namespaces.len());
        let problem = ApiError::not_found(format!("drive `{name}` has no namespace {nsid}"));
        return Err(problem.hint(match last {
            1 => "its only namespace is 1".to_owned(),
            last => format!("its namespaces are 1 to {last}"),
        }));
    };
    if namespace.functions.iter().any(FunctionSpec::is_composed) {
        return Err(ApiError::invalid("the drive has the size of the layers that it is made of")
            .hint("its size is where they are declared"));
    }
    if namespace.target == TargetKind::Nvme {
        return Err(ApiError::invalid("an nvme target has the size of its range of the device")
            .hint("change first_block and blocks where the drive is declared"));
    }
    if namespace.target == TargetKind::NvmeTcp {
        return Err(ApiError::invalid("an nvme-tcp target has the size of its namespace there")
            .hint("resize it there, and open the drive again"));
    }
    if let Some(room) = namespace.room().filter(|room| *room < size) {
        return Err(ApiError::conflict(format!(
            "a copy of namespace {nsid} is kept that has room for {room}"
        ))
        .hint("make its layer larger first, where it is declared, and restart the daemon"));
    }
    Ok(namespace.check_size(size)?)
}

/// Notes a new size: in the spec of a created drive, in a separate record of a declared one.
fn remember_size(saved: &mut Saved, entry: &Entry, declared: Option<&DriveSpec>, nsid: u32, size: Size) {
    let drive = &entry.spec.name;
    if entry.origin == Origin::Created {
        let created = saved.drives.iter_mut().find(|created| created.name == *drive);
        if let Some(namespace) = created.and_then(|created| created.namespace_mut(nsid)) {
            namespace.size = Some(size);
        }
        return;
    }
    let before = saved.resized.extract_if(.., |it| it.drive == *drive && it.nsid == nsid).last();
    // A namespace that the file does not declare now may be declared again, unchanged.
    let declared = match declared.and_then(|declared| declared.namespace(nsid)) {
        Some(namespace) => namespace.size,
        None => before.map_or(entry.spec.namespace(nsid).and_then(|it| it.size), |before| before.declared),
    };
    saved.resized.push(Resized { drive: drive.clone(), nsid, declared, size });
}
