//! Requests of a function's own to the layers below.

use super::entry;
use super::flow::is_possible;
use super::layer::Uif;
use super::peer::Peer;
use super::unreported_loss::UnreportedLoss;
use sluice_command::{Command, Lane, Request};
use sluice_memory::Segment;
use sluice_nvme::Status;
use sluice_uif::abi::{DATA_MAX, REQUESTS_MAX, Reply, Submission, kind};

/// Stage of a request of the function's own. A child of a command has stage 0.
pub(super) const OWN: u8 = 1;

impl Uif {
    /// Sends a request below. The reply may be anything.
    pub(super) fn originate(&mut self, reply: &Reply, lane: &mut Lane<'_>) {
        let Some((request, data)) = self.parse_request(reply) else {
            self.instance.counts.invalid.increment();
            return self.answer_request(reply.tag, Status::INVALID_FIELD);
        };
        // Requests of functions that are gone count, too: the layers below have room for so many of all
        // together.
        let arenas = self.arena.iter().chain(&self.retiring);
        if arenas.map(|arena| arena.requests).sum::<u16>() >= REQUESTS_MAX {
            self.instance.counts.invalid.increment();
            return self.kill("it has more requests of its own in flight than it may", lane);
        }
        let Some(arena) = &mut self.arena else { return };
        let place = reply.data_offset as usize;
        let place = data.is_some().then(|| place..place + request.length as usize);
        let number = arena.begin_request(place);
        self.instance.counts.requests.increment();
        let note = [reply.tag, u64::from(number) << 32 | u64::from(arena.number)];
        lane.originate(reply.layer.into(), request, data, OWN, note);
    }

    /// Returns the request and its data if the layer exists, the request lies inside it, and its data lies
    /// inside the arena and is no longer than that of a host's command. Returns none before the function was
    /// sent START.
    fn parse_request(&self, reply: &Reply) -> Option<(Request, Option<Segment>)> {
        if !self.may_start() {
            return None;
        }
        let request = entry::request(reply)?;
        let arena = self.arena.as_ref()?;
        let data = match request.has_data() {
            // The layers below have room for the children of that much.
            true if request.length > DATA_MAX.into() => return None,
            true => Some(arena.request_data(reply.data_offset, request.length)?),
            false => None,
        };
        let fits = is_possible(&request, request.length, self.below.get(reply.layer)?);
        fits.then_some((request, data))
    }

    /// Takes a request back. Its status is dropped if the requesting function is gone.
    pub(super) fn request_done(&mut self, command: Command, [tag, note]: [u64; 2], lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let (status, is_loss) = (slot.status, UnreportedLoss::is_loss(&slot.request, slot.status));
        lane.discard(command);
        let mut arenas = self.arena.iter_mut().chain(&mut self.retiring);
        let Some(arena) = arenas.find(|it| it.number == note as u32) else { return };
        arena.end_request((note >> 32) as u32);
        let requester = arena.number;
        self.note_loss(is_loss, requester, lane);
        if self.arena.as_ref().is_some_and(|arena| arena.number == requester) {
            if let Peer::External(external) = &mut self.peer {
                external.done_ns = lane.now_ns();
            }
            return self.answer_request(tag, status);
        }
        self.retire();
    }

    /// Notes a loss, if there `is_loss`, at the end of a request of the function of connection `requester`.
    pub(super) fn note_loss(&mut self, is_loss: bool, requester: u32, lane: &Lane<'_>) {
        match is_loss {
            true if self.peer.number() == requester => {
                self.unreported_loss.raise(lane.now_ns());
                self.publish_loss();
            }
            true => self.owe(),
            false => {}
        }
    }

    fn answer_request(&mut self, tag: u64, status: Status) {
        self.send_entry(Submission { tag, kind: kind::DONE, status: status.0, ..Submission::default() });
    }

    /// Sends an entry that is no command. A function in this process gets it when it has answered the entries
    /// before.
    pub(super) fn send_entry(&mut self, entry: Submission) {
        match &mut self.peer {
            Peer::External(external) => external.sender.push(&entry),
            Peer::Local(_) => self.unsent.push_back(entry),
            Peer::Absent => {}
        }
    }
}
