//! Records of drives that another process hands over. A record of any bytes is taken or refused, and the descriptors
//! that it names are never closed for the other process.

use crate::layers;
use crate::{Input, scratch};
use sluice_command::record::{Need, Writer};
use sluice_controller::{ControllerRecord, Subsystem, SubsystemRecord};
use sluice_frontend::Drive;
use sluice_frontend_tcp::{self as tcp, Directory, HostsRecord, IncomingHosts, Keys};
use sluice_frontend_vfio_user::{self as vfio_user, IncomingSocket, Socket, SocketRecord};
use sluice_reactor::{ReactorConfig, ReactorHandle};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

/// Bytes of a file that a record names: as many as the memory of any connection has.
const FILE: u64 = 64 << 20;

/// Changes of a valid record.
const CHANGES_MAX: usize = 8;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => subsystem(&mut input),
        1 => controller(&mut input),
        2 => hosts(&mut input),
        _ => socket(&mut input),
    }
}

/// Returns a valid record with a few other bytes, or any bytes.
fn changed(input: &mut Input<'_>, valid: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    if input.one_in(2) {
        return input.bytes(usize::MAX).to_vec();
    }
    let mut bytes = valid();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() || bytes.is_empty() {
            break;
        }
        let at = usize::from(input.u16()) % bytes.len();
        bytes[at] = input.byte();
    }
    bytes
}

fn new_subsystem() -> Subsystem {
    let (config, ..) = layers::config();
    Subsystem::new(config).expect("memory")
}

/// Reads a record of a subsystem. One that is read comes back.
fn subsystem(input: &mut Input<'_>) {
    let valid = || {
        let mut subsystem = new_subsystem();
        subsystem.hold(u64::MAX);
        subsystem.record().expect("nothing is in flight").encode(0)
    };
    let bytes = changed(input, valid);
    if let Ok(record) = SubsystemRecord::decode(&bytes, 0) {
        let again = record.encode(0);
        let read = SubsystemRecord::decode(&again, 0).expect("it was written here");
        assert_eq!(read.encode(0), again);
        // The subsystem may have other namespaces.
        let _ = new_subsystem().take_over(record, true, 0);
    }
}

/// Reads a record of a controller. One that is read comes back.
fn controller(input: &mut Input<'_>) {
    let bytes = input.bytes(usize::MAX);
    if let Ok(record) = ControllerRecord::decode(bytes, 0) {
        let again = record.encode(0);
        let read = ControllerRecord::decode(&again, 0).expect("it was written here");
        assert_eq!(read.encode(0), again);
    }
}

/// Returns descriptors for a record: sockets and files, with copies of the sockets' other ends.
fn descriptors() -> (Vec<OwnedFd>, Vec<UnixStream>) {
    let (mut fds, mut ends): (Vec<OwnedFd>, Vec<UnixStream>) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (own, other) = UnixStream::pair().expect("descriptors");
        fds.push(own.into());
        ends.push(other);
        let file = rustix::fs::memfd_create("record", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&file, FILE).expect("it is sparse");
        fds.push(file);
    }
    (fds, ends)
}

/// Gives a new drive to `take`, on a reactor.
fn with_drive(take: impl FnOnce(&mut Drive) + Send + 'static) {
    static REACTOR: OnceLock<ReactorHandle> = OnceLock::new();
    let reactor =
        REACTOR.get_or_init(|| ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here"));
    let add = move |local: &mut sluice_reactor::Local| {
        let task = local.add(|task, io| {
            let mut drive = Drive::new(task, io, new_subsystem());
            take(&mut drive);
            Box::new(drive)
        });
        drop(local.remove(task));
    };
    reactor.call(add).expect("the reactor runs");
}

/// Checks that the other process still has its sockets: nothing was shut down.
fn check_open(ends: &[UnixStream]) {
    for end in ends {
        let sent = rustix::net::send(end.as_fd(), b"x", rustix::net::SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(1), "the socket was shut down");
    }
}

fn hosts(input: &mut Input<'_>) {
    let valid = || {
        let mut writer = Writer::new(0);
        writer.part(2, Need::Required, |part| part.put(0u32));
        writer.finish()
    };
    let bytes = changed(input, valid);
    let (fds, ends) = descriptors();
    let kept: Vec<OwnedFd> = fds.iter().map(|fd| fd.try_clone().expect("a descriptor")).collect();
    with_drive(move |drive| {
        let config = tcp::Config { name: "disk".to_owned(), cntlid: 1, hosts_max: 4, queues_max: 8 };
        let directory = Arc::<Directory>::default();
        let keys = Keys::new("nqn.drive".to_owned(), Vec::new(), Arc::downgrade(&directory));
        let incoming = IncomingHosts::new(HostsRecord { bytes, fds });
        let _ = tcp::Hosts::take_over(drive, config, &incoming, &keys, 0);
    });
    check_open(&ends);
    drop(kept);
}

fn socket(input: &mut Input<'_>) {
    let bytes = input.bytes(usize::MAX).to_vec();
    let (mut fds, ends) = descriptors();
    let folder = scratch().join("socket");
    std::fs::create_dir_all(&folder).expect("the folder is ours");
    fds.push(File::open(&folder).expect("it is there").into());
    let kept: Vec<OwnedFd> = fds.iter().map(|fd| fd.try_clone().expect("a descriptor")).collect();
    if let Ok(socket) = IncomingSocket::read(SocketRecord { bytes, fds }) {
        with_drive(move |drive| {
            let _ = Socket::take_over(drive, socket, vfio_user::Config::default(), 0);
        });
    }
    check_open(&ends);
    drop(kept);
    assert!(folder.exists(), "the folder belongs to the other process");
}
