//! What a function asks the layers below for itself.

use super::doubt::Doubt;
use super::entry;
use super::flow::is_possible;
use super::layer::Uif;
use super::peer::Peer;
use sluice_command::{Command, Lane, Request};
use sluice_memory::Segment;
use sluice_nvme::Status;
use sluice_uif::abi::{DATA_MAX, REQUESTS_MAX, Reply, Submission, kind};

/// The stage of a request of the function's own. What is sent below for a command has stage 0.
pub(super) const OWN: u8 = 1;

impl Uif {
    /// Sends a request below. It may be anything.
    pub(super) fn originate(&mut self, reply: &Reply, lane: &mut Lane<'_>) {
        let Some((request, data)) = self.asked(reply) else {
            self.seat.counts.invalid.increment();
            return self.answer_request(reply.tag, Status::INVALID_FIELD);
        };
        // With those of functions that are gone: the layers below have room for so many of all together.
        let arenas = self.arena.iter().chain(&self.retiring);
        if arenas.map(|arena| arena.requests).sum::<u16>() >= REQUESTS_MAX {
            self.seat.counts.invalid.increment();
            return self.condemn("it has more requests of its own in flight than it may", lane);
        }
        let Some(arena) = &mut self.arena else { return };
        let place = reply.data_offset as usize;
        let place = data.is_some().then(|| place..place + request.length as usize);
        let number = arena.enter(place);
        self.seat.counts.requests.increment();
        let note = [reply.tag, u64::from(number) << 32 | u64::from(arena.number)];
        lane.originate(reply.layer.into(), request, data, OWN, note);
    }

    /// The request and its data, if it is one for a layer that there is, inside of it, and with data inside
    /// of the arena that is no longer than a host's; none before the function was asked to start.
    fn asked(&self, reply: &Reply) -> Option<(Request, Option<Segment>)> {
        if !self.may_start() {
            return None;
        }
        let request = entry::request(reply)?;
        let arena = self.arena.as_ref()?;
        let data = match request.has_data() {
            // The layers below have room for the parts of that much.
            true if request.length > DATA_MAX.into() => return None,
            true => Some(arena.lend(reply.data_offset, request.length)?),
            false => None,
        };
        let fits = is_possible(&request, request.length, self.below.get(reply.layer)?);
        fits.then_some((request, data))
    }

    /// A request is back. If the function that asked is gone, nobody wants to know.
    pub(super) fn request_done(&mut self, command: Command, [tag, note]: [u64; 2], lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let (status, is_loss) = (slot.status, Doubt::is_loss(&slot.request, slot.status));
        lane.discard(command);
        let mut arenas = self.arena.iter_mut().chain(&mut self.retiring);
        let Some(arena) = arenas.find(|it| it.number == note as u32) else { return };
        arena.left((note >> 32) as u32);
        let asker = arena.number;
        self.note_loss(is_loss, asker, lane);
        if self.arena.as_ref().is_some_and(|arena| arena.number == asker) {
            if let Peer::There(there) = &mut self.peer {
                there.done_ns = lane.now_ns();
            }
            return self.answer_request(tag, status);
        }
        self.retire();
    }

    /// What was asked for by the function of connection `asker` has ended; with a loss, if it `is_loss`.
    pub(super) fn note_loss(&mut self, is_loss: bool, asker: u32, lane: &Lane<'_>) {
        match is_loss {
            true if self.peer.number() == asker => {
                self.doubt.raise(lane.now_ns());
                self.show_doubt();
            }
            true => self.owe(),
            false => {}
        }
    }

    fn answer_request(&mut self, tag: u64, status: Status) {
        self.tell(Submission { tag, kind: kind::DONE, status: status.0, ..Submission::default() });
    }

    /// Says something that is no command. A function in this process hears it when it has answered what it
    /// was asked before.
    pub(super) fn tell(&mut self, entry: Submission) {
        match &mut self.peer {
            Peer::There(there) => there.sender.push(&entry),
            Peer::Here(_) => self.untold.push_back(entry),
            Peer::Absent => {}
        }
    }
}
