//! Making the labels of a set.

use crate::copies::Found;
use crate::device::{Device, Error};
use crate::label::{Label, Role, SetKind, UNIT};
use crate::set::Assembly;
use crate::uuid::{Uuid, random};

/// Kind of a set, and the options that determine where its data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub kind: SetKind,
    /// Bytes of a chunk; zero for kinds without chunks.
    pub chunk: u64,
}

/// Device that is to be a member.
#[derive(Debug)]
pub struct Member<'a> {
    pub device: &'a Device,
    pub role: Role,
    /// Bytes of its data, which begin with the device.
    pub data_bytes: u64,
    /// Number of its storage in the log of the set; zero if the log has none.
    pub storage: u128,
}

/// Labels devices as the members of a new set. Data stays where it is. Before all labels are durable, each has
/// epoch 0.
///
/// # Errors
/// A device has no room, or cannot be written.
pub fn form(shape: &Shape, members: &[Member<'_>]) -> Result<Assembly, Error> {
    for member in members {
        member.device.has_room(member.data_bytes)?;
    }
    let mut labels = labels(shape, members)?;
    for (label, member) in labels.iter().zip(members) {
        is_readable(label, member.device)?;
    }
    for (label, member) in labels.iter_mut().zip(members) {
        let former_bytes = member.device.bytes()?;
        label.device_bytes = match former(member.device)? {
            // The room is left from an attempt that was interrupted.
            Some(former) if former.data_bytes == member.data_bytes => former.device_bytes,
            _ => member.device.labelled_bytes(member.data_bytes)? / UNIT * UNIT,
        };
        // A file keeps its length if its label cannot be stored: without a label, the area would count as data.
        member.device.store(label).inspect_err(|_| member.device.give_back_room(former_bytes))?;
    }
    for (label, member) in labels.iter_mut().zip(members) {
        (label.epoch, label.next_epoch) = (1, 0);
        label.sequence += 1;
        member.device.store(label)?;
    }
    let set = labels.first().map_or(Uuid::NIL, |label| label.set);
    Ok(Assembly { set, stale: vec![false; labels.len()], labels, epoch: 1 })
}

/// Labels a device as the new storage of a role in a redundant set, to which another label belongs. It counts as
/// outdated until the set is opened, and is copied to then.
///
/// # Errors
/// The device has no room, or cannot be written.
pub fn replace(device: &Device, other: &Label, role: Role, data_bytes: u64) -> Result<Label, Error> {
    let mut label = other.clone();
    label.member = Uuid::random().map_err(no_random)?;
    (label.role, label.data_bytes) = (role, data_bytes);
    (label.sequence, label.epoch, label.next_epoch) = (1, 0, 1);
    label.storage = u128::from_le_bytes(random().map_err(no_random)?);
    label.note(role, label.member);
    device.has_room(data_bytes)?;
    is_readable(&label, device)?;
    let former_bytes = device.bytes()?;
    label.device_bytes = device.labelled_bytes(data_bytes)? / UNIT * UNIT;
    device.store(&label).inspect_err(|_| device.give_back_room(former_bytes))?;
    Ok(label)
}

/// Checks that the label can be read again, before anything is written.
fn is_readable(label: &Label, device: &Device) -> Result<(), Error> {
    match label.is_readable() {
        true => Ok(()),
        false => Err(Error::Impossible(device.path().to_owned())),
    }
}

fn no_random(error: std::io::Error) -> Error {
    Error::Io("/dev/urandom".into(), "read", error)
}

fn labels(shape: &Shape, members: &[Member<'_>]) -> Result<Vec<Label>, Error> {
    let new = || Uuid::random().map_err(no_random);
    let (set, uuids) = (new()?, members.iter().map(|_| new()).collect::<Result<Vec<_>, _>>()?);
    let with = |wanted: fn(Role) -> bool| {
        let both = members.iter().zip(&uuids);
        both.filter(move |(member, _)| wanted(member.role)).map(|(_, uuid)| *uuid)
    };
    let data: Vec<Uuid> = with(|role| role != Role::Log).collect();
    let log = with(|role| role == Role::Log).next().unwrap_or_default();
    let label = |(member, uuid): (&Member<'_>, &Uuid)| {
        let former = former(member.device)?.map_or(0, |label| label.sequence);
        let storage = match member.storage {
            0 => u128::from_le_bytes(random().map_err(no_random)?),
            known => known,
        };
        Ok(Label {
            features: [0; 3],
            set,
            kind: shape.kind,
            role: member.role,
            members: data.clone(),
            log,
            member: *uuid,
            sequence: former + 1,
            epoch: 0,
            next_epoch: 1,
            data_offset: 0,
            data_bytes: member.data_bytes,
            device_bytes: 0,
            chunk: shape.chunk,
            storage,
        })
    };
    members.iter().zip(&uuids).map(label).collect()
}

/// Returns the label that a device has already.
fn former(device: &Device) -> Result<Option<Label>, Error> {
    Ok(match device.found()? {
        Found::Label(label) => Some(*label),
        _ => None,
    })
}
