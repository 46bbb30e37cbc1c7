//! Opens drives when the daemon starts: first the drives of this machine, then those on the network, in
//! parallel. The time of a machine that does not respond is spent only once, and drives without such a
//! machine do not wait for it.

use super::{DRIVES_MAX, Drives, Entry, Origin, lock, no_room};
use sluice_spec::DriveSpec;
use sluice_spec::error::Kind;
use std::collections::HashSet;
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

/// Time that all drives together wait for resources that an earlier daemon still holds.
const LINGER_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two attempts.
const LINGER_PAUSE: Duration = Duration::from_millis(10);

/// Number of drives that are opened at a time.
const AT_ONCE: usize = 32;

impl Drives {
    /// Opens drives, before any change. A drive that cannot be opened, or exceeds the maximum number, is kept
    /// as failed. So one missing disk does not stop the other drives.
    pub fn open_all(&self, mut specs: Vec<(DriveSpec, Origin)>) {
        let _changes: Vec<_> = specs.iter().map(|(spec, _)| self.changes.begin(&spec.name)).collect();
        let deadline = Instant::now() + LINGER_LIMIT;
        let surplus = specs.split_off(specs.len().min(DRIVES_MAX));
        let mut taken = HashSet::new();
        let is_first = |(spec, _): &(DriveSpec, Origin)| {
            let has_serial = taken.insert(spec.serial());
            let has_name = spec.tcp.is_none() || taken.insert(spec.subnqn());
            has_serial && has_name
        };
        // Of two drives that a host cannot distinguish, the first has precedence. The second is opened after
        // it, and is refused.
        let (specs, others): (Vec<_>, Vec<_>) = specs.into_iter().partition(is_first);
        let (far, near): (Vec<_>, Vec<_>) = specs.into_iter().partition(|(spec, _)| spec.is_remote());
        let open = |(spec, origin): (DriveSpec, Origin)| {
            let reactor = self.place(&spec, &[]);
            self.take_in(self.open_patiently(&spec, origin, reactor, deadline));
        };
        near.into_iter().for_each(open);
        for some in far.chunks(AT_ONCE) {
            self.open_side_by_side(some, deadline);
        }
        others.into_iter().for_each(open);
        for (spec, origin) in surplus {
            let (reactor, running) = (self.place(&spec, &[]), Err(no_room(&spec.name)));
            self.take_in(Entry { spec, origin, reactor, moved: false, running });
        }
    }

    fn open_side_by_side(&self, specs: &[(DriveSpec, Origin)], deadline: Instant) {
        let mut placed = Vec::with_capacity(specs.len());
        for (spec, _) in specs {
            placed.push(self.place(spec, &placed));
        }
        scope(|threads| {
            let left = specs.iter().zip(placed).filter_map(|((spec, origin), reactor)| {
                // The drive is listed as soon as it is open: its hosts may wait for stores.
                let open = move || self.take_in(self.open_patiently(spec, *origin, reactor, deadline));
                // If no thread can be started, the drive is opened after the others.
                Builder::new().spawn_scoped(threads, open).is_err().then_some(open)
            });
            left.collect::<Vec<_>>().into_iter().for_each(|open| open());
        });
    }

    fn take_in(&self, entry: Entry) {
        if let Err(problem) = &entry.running {
            tracing::error!("drive {} is not open: {}", entry.spec.name, problem.in_one_line());
        }
        lock(&self.entries).insert(entry.spec.name.clone(), entry);
    }

    /// Opens a drive, and tries again until `deadline` while something is in use. The kernel takes time to
    /// end the io_uring of a killed daemon, and keeps that daemon's sockets and locks until then.
    fn open_patiently(&self, spec: &DriveSpec, origin: Origin, reactor: usize, deadline: Instant) -> Entry {
        loop {
            let entry = self.open_entry(spec.clone(), origin, reactor);
            match &entry.running {
                Err(problem) if problem.kind == Kind::InUse && Instant::now() < deadline => {
                    std::thread::sleep(LINGER_PAUSE);
                }
                _ => return entry,
            }
        }
    }
}
