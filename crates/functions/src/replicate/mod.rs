//! Replicate: a second copy of the drive that is always equal, or known not to be.
//!
//! Layer 0 is the primary, which the host reads; layer 1 the secondary, layer 2 the log. A write goes to both
//! from the one private copy of its data, and is done when both are. What else it takes, [`Mirror`] knows:
//! this is what connects it to a host and to the layers.

mod control;

use crate::mirrored::{Mirrored, News};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_redundancy::{Begun, Config, Ended, Members, Mirror, WriteId, region_bytes};
use sluice_uif::{
    Answer, Below, Call, Control, Data, Done, Function, Held, Interest, Io, Options, Properties,
};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

const PRIMARY: usize = 0;
const SECONDARY: usize = 1;
/// Members; the log is the layer after them.
const MEMBERS: usize = 2;

/// Bytes that are copied or compared at once.
const PIECE_BYTES: u32 = 512 << 10;

/// Bytes a second that are copied while the host writes, unless an option says otherwise.
const RATE: u64 = 64 << 20;

/// Stages of a command: the primary is done with it; it may go.
const BACK: u8 = 1;
const GO: u8 = 2;

/// The function.
#[derive(Debug)]
pub struct Replicate {
    rate: u64,
    /// Of a log that is new.
    id: u64,
    set: Option<Mirrored>,
    /// Why there is none.
    trouble: String,
    /// There was one, of which something may be under way: there will not be another.
    refused: bool,
    /// By [`WriteId`].
    writes: Vec<Write>,
    /// They may go, and there was no room to ask the secondary.
    crowded: VecDeque<u32>,
}

/// A write or flush of the host.
#[derive(Clone, Debug)]
struct Write {
    held: Held,
    /// For news of the set.
    waits: bool,
    to: Members,
    /// Those that are not done with it.
    left: Members,
    failed: Members,
    /// How it went on the primary.
    status: Status,
}

impl Replicate {
    /// From the option `resync_mib_s`, what is copied while the host writes (64).
    ///
    /// # Errors
    /// In words.
    pub fn new(options: &Options) -> Result<Self, String> {
        if let Some(stranger) = options.stranger(&["resync_mib_s"]) {
            return Err(format!("replicate knows no option `{stranger}`; it knows resync_mib_s"));
        }
        let rate = match options.get("resync_mib_s").map(str::parse::<u32>) {
            None => RATE,
            Some(Ok(rate)) if rate > 0 => u64::from(rate) << 20,
            Some(_) => return Err("resync_mib_s is a number of MiB a second, from 1".into()),
        };
        Ok(Self {
            rate,
            id: RandomState::new().hash_one("a new log"),
            set: None,
            trouble: "it waits for the layers below".into(),
            refused: false,
            writes: Vec::new(),
            crowded: VecDeque::new(),
        })
    }

    /// The set of these layers.
    fn open(&self, layers: &[Below]) -> Result<Mirror, String> {
        let [primary, secondary, log] = layers else {
            return Err(format!(
                "replicate needs the layers [secondary, log], and has {}",
                layers.len().max(1) - 1
            ));
        };
        fits(primary, secondary)?;
        Mirror::new(Config {
            members: MEMBERS,
            size: primary.size,
            region_bytes: region_bytes(primary.size),
            log_bytes: log.size,
            piece_bytes: PIECE_BYTES.into(),
            rate: self.rate,
            promotes: false,
            id: self.id,
        })
    }

    /// A write may go: to the secondary as a request of our own, to the primary as what it is.
    fn go(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        // Deallocated blocks may read as anything; of two copies both read as zeros.
        if call.request.operation == Operation::Deallocate {
            (call.request.operation, call.request.deallocate) = (Operation::WriteZeroes, true);
        }
        let write = &mut self.writes[id as usize];
        write.left = write.to;
        if write.to.contains(SECONDARY) {
            let data = if call.request.has_data() { Data::Of(write.held, 0) } else { Data::None };
            if io.request(SECONDARY as u8, call.request, data, id.into()).is_err() {
                self.crowded.push_back(id);
                return Answer::Hold;
            }
        }
        Answer::ForwardAndReturn(BACK)
    }

    /// A member is done with a write. If all are: what becomes of it, unless the log has to be written first.
    fn leg_done(&mut self, id: u32, member: usize, status: Status) -> Option<Status> {
        let write = &mut self.writes[id as usize];
        write.left = write.left.without(Members::one(member));
        if !status.is_success() {
            write.failed = write.failed.with(Members::one(member));
        }
        if member == PRIMARY {
            write.status = status;
        }
        if !write.left.is_empty() {
            return None;
        }
        let Some(set) = &mut self.set else { return Some(Status::NAMESPACE_NOT_READY) };
        match set.mirror.end(WriteId(id), write.failed) {
            Ended::Good => Some(Status::SUCCESS),
            Ended::Failed => Some(write.status),
            Ended::Wait => {
                write.waits = true;
                None
            }
        }
    }

    /// What the set wants done, as long as there is room to ask for it.
    fn run(&mut self, io: &mut Io<'_>) {
        while let Some(news) = self.set.as_mut().and_then(|set| set.next(io)) {
            match news {
                News::Ready(Ok(())) => io.ready(Status::SUCCESS),
                News::Ready(Err(words)) => self.refuse(words, io),
                News::Go { write, to } => {
                    let write = &mut self.writes[write as usize];
                    (write.to, write.waits) = (to, false);
                    io.resume(write.held, GO, Status::SUCCESS);
                }
                News::Over { write, good } => {
                    let status = if good { Status::SUCCESS } else { Status::WRITE_FAULT };
                    let write = &mut self.writes[write as usize];
                    write.waits = false;
                    io.finish(write.held, status);
                }
            }
        }
        while io.has_room()
            && let Some(id) = self.crowded.pop_front()
        {
            io.resume(self.writes[id as usize].held, GO, Status::SUCCESS);
        }
        io.wake_at(self.set.as_ref().and_then(|set| set.mirror.alarm_ns()));
    }
}

/// If this can be a copy of that.
fn fits(primary: &Below, secondary: &Below) -> Result<(), String> {
    if secondary.size < primary.size {
        return Err(format!("the secondary has {} bytes, the primary {}", secondary.size, primary.size));
    }
    if secondary.block_size > primary.block_size {
        return Err(format!(
            "the secondary has blocks of {} bytes, the drive of {}",
            secondary.block_size, primary.block_size
        ));
    }
    Ok(())
}

fn is_range(request: &Request) -> bool {
    request.operation != Operation::Flush
}

impl Function for Replicate {
    fn properties(&self) -> Properties {
        let changes = [Operation::Write, Operation::WriteZeroes, Operation::Deallocate, Operation::Flush];
        let own = Properties { pool: 4 * PIECE_BYTES, ..Properties::NONE };
        changes.into_iter().fold(own, |own, operation| own.with(operation, Interest::Before))
    }

    fn start(&mut self, io: &mut Io<'_>) {
        if self.refused {
            return io.ready(Status::NAMESPACE_NOT_READY);
        }
        let layers = io.layers().to_vec();
        let outcome = match &mut self.set {
            // They have another size.
            Some(set) => fits(&layers[PRIMARY], &layers[SECONDARY])
                .and_then(|()| set.mirror.resize(layers[PRIMARY].size))
                .map(|()| io.ready(Status::SUCCESS)),
            None => self.open(&layers).map(|mirror| self.set = Some(Mirrored::new(mirror, MEMBERS))),
        };
        if let Err(words) = outcome {
            self.refuse(words, io);
        }
        self.run(io);
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let Some(set) = &mut self.set else { return Answer::Finish(Status::NAMESPACE_NOT_READY) };
        let request = &call.request;
        let bytes = if is_range(request) { request.offset..request.end() } else { 0..0 };
        let (WriteId(id), begun) = set.mirror.begin(bytes);
        let (none, status) = (Members::NONE, Status::SUCCESS);
        let waits = begun == Begun::Wait;
        let write = Write { held: call.hold(), waits, to: none, left: none, failed: none, status };
        if self.writes.len() <= id as usize {
            self.writes.resize(id as usize + 1, write.clone());
        }
        self.writes[id as usize] = write;
        call.cookie[0] = id.into();
        let answer = match begun {
            Begun::Go(to) => {
                self.writes[id as usize].to = to;
                self.go(id, call, io)
            }
            Begun::Wait => Answer::Hold,
        };
        self.run(io);
        answer
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let id = call.cookie[0] as u32;
        if call.stage == GO && self.set.is_none() {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        if call.stage == GO {
            return self.go(id, call, io);
        }
        // It is another one to hold, each time that it comes.
        self.writes[id as usize].held = call.hold();
        let over = self.leg_done(id, PRIMARY, call.status);
        self.run(io);
        over.map_or(Answer::Hold, Answer::Finish)
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        // A token that is a write's is that of its leg; the others are the set's.
        match (u32::try_from(done.token), &mut self.set) {
            (Ok(id), _) => {
                if let Some(status) = self.leg_done(id, SECONDARY, done.status) {
                    io.finish(self.writes[id as usize].held, status);
                }
            }
            (Err(_), Some(set)) => set.done(done, io),
            (Err(_), None) => {}
        }
        self.run(io);
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        self.run(io);
    }

    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let answer = self.obey(text);
        self.run(io);
        Control::Now(answer)
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        if let Some(set) = &self.set {
            set.mirror.status().count(count);
        }
    }
}

#[cfg(test)]
mod tests;
