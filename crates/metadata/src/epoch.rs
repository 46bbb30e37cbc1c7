//! Raising the epoch of a set when it is opened, and when it is closed.

use crate::copies::Found;
use crate::device::{Device, Error};
use crate::label::Role;
use crate::set::Assembly;
use crate::uuid::{Uuid, random};
use std::io;

/// Stores the next epoch on all members, whose devices this process has locked. A member that is outdated gets a
/// new UUID and a new number of its storage, so that the log of the set does not take it for the former one.
///
/// The next epoch is announced on all members before it counts on one. So an interruption never makes a member
/// look like an older copy.
///
/// # Errors
/// A label has changed since it was judged, or cannot be written.
pub fn raise(assembly: &mut Assembly, devices: &[Device]) -> Result<(), Error> {
    for (device, judged) in devices.iter().zip(&assembly.labels) {
        if device.found()? != Found::Label(Box::new(judged.clone())) {
            let changed = io::Error::other("another program has changed it");
            return Err(Error::Io(device.path().to_owned(), "use the label of", changed));
        }
    }
    let (current, next) = (assembly.epoch, assembly.epoch + 1);
    for (index, device) in devices.iter().enumerate().filter(|(index, _)| !assembly.stale[*index]) {
        let label = &mut assembly.labels[index];
        (label.epoch, label.next_epoch) = (current, next);
        label.sequence += 1;
        device.store(label)?;
    }
    let listed = renew_stale(assembly)?;
    let order = (0..devices.len()).filter(|index| !assembly.stale[*index]);
    let order: Vec<usize> = order.chain((0..devices.len()).filter(|index| assembly.stale[*index])).collect();
    for index in order {
        let label = &mut assembly.labels[index];
        (label.members, label.log) = listed.clone();
        (label.epoch, label.next_epoch) = (next, 0);
        label.sequence += 1;
        devices[index].store(label)?;
    }
    assembly.epoch = next;
    assembly.stale.fill(false);
    Ok(())
}

/// Gives outdated members new UUIDs, in memory. Returns the UUIDs of all members, and of the log.
fn renew_stale(assembly: &mut Assembly) -> Result<(Vec<Uuid>, Uuid), Error> {
    let no_random = |error| Error::Io("/dev/urandom".into(), "read", error);
    let mut both = assembly.labels.iter().zip(&assembly.stale);
    let latest = both.find(|(label, stale)| !**stale && label.role != Role::Log);
    let Some(mut latest) = latest.map(|(label, _)| label.clone()) else { return Ok(Default::default()) };
    for (label, _) in assembly.labels.iter_mut().zip(&assembly.stale).filter(|(_, stale)| **stale) {
        label.member = Uuid::random().map_err(no_random)?;
        label.storage = u128::from_le_bytes(random().map_err(no_random)?);
        latest.note(label.role, label.member);
    }
    Ok((latest.members, latest.log))
}
