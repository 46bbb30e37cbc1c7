//! Requests of a function's own to the layers below.

use super::arena::Pages;
use super::flow::is_possible;
use super::layer::Uif;
use super::local::Notice;
use super::peer::Peer;
use super::unreported_loss::UnreportedLoss;
use sluice_command::{Command, Lane, Request};
use sluice_memory::Segment;
use sluice_nvme::Status;
use sluice_uif::abi::{DATA_MAX, REQUESTS_MAX, Submission, kind};

/// Stage of a request of the function's own. A child of a command has stage 0.
pub(super) const OWN: u8 = 1;

impl Uif {
    /// Sends a request below. Its values may be anything; `request` is none if it has no meaning.
    pub(super) fn originate(
        &mut self,
        tag: u64,
        layer: u8,
        request: Option<Request>,
        data_offset: u64,
        lane: &mut Lane<'_>,
    ) {
        let possible = request
            .and_then(|request| self.request_data(&request, layer, data_offset).map(|data| (request, data)));
        let Some((request, data)) = possible else {
            self.instance.counts.invalid.increment();
            return self.answer_request(tag, Status::INVALID_FIELD);
        };
        // Requests of functions that are gone count, too: the layers below have room for so many of all
        // together.
        let arenas = self.arena.iter().chain(&self.retiring);
        if arenas.map(|arena| arena.requests).sum::<u16>() >= REQUESTS_MAX {
            self.instance.counts.invalid.increment();
            return self.kill("it has more requests of its own in flight than it may", lane);
        }
        let Some(arena) = &mut self.arena else { return };
        let place = data_offset as usize;
        let pages = arena.begin_request(data.is_some().then(|| place..place + request.length as usize));
        self.instance.counts.requests.increment();
        let note = [tag, u64::from(pages.to_bits()) << 32 | u64::from(arena.number)];
        lane.originate(layer.into(), request, data, OWN, note);
    }

    /// Returns the data of a request if the layer exists, the request lies inside it, and its data lies
    /// inside the arena and is no longer than that of a host's command. Returns none before the function was
    /// sent START.
    fn request_data(&self, request: &Request, layer: u8, data_offset: u64) -> Option<Option<Segment>> {
        if !self.may_start() {
            return None;
        }
        let arena = self.arena.as_ref()?;
        let data = match request.has_data() {
            // The layers below have room for the children of that much.
            true if request.length > DATA_MAX.into() => return None,
            true => Some(arena.request_data(data_offset, request.length)?),
            false => None,
        };
        is_possible(request, request.length, self.below.get(layer)?).then_some(data)
    }

    /// Takes a request back. Its status is dropped if the requesting function is gone.
    pub(super) fn request_done(&mut self, command: Command, [tag, note]: [u64; 2], lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let (status, is_loss) = (slot.status, UnreportedLoss::is_loss(&slot.request, slot.status));
        lane.discard(command);
        let mut arenas = self.arena.iter_mut().chain(&mut self.retiring);
        let Some(arena) = arenas.find(|it| it.number == note as u32) else { return };
        arena.end_request(Pages::of_bits((note >> 32) as u32));
        let requester = arena.number;
        self.note_loss(is_loss, requester, lane);
        if self.arena.as_ref().is_some_and(|arena| arena.number == requester) {
            match &mut self.peer {
                Peer::External(external) => external.done_ns = lane.now_ns(),
                // Nothing else is to come first.
                Peer::Local(_) if self.unsent.is_empty() => {
                    return self.notify(Notice::Done(tag, status), lane);
                }
                _ => {}
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

    /// Sends the function the end of a request. A function in this process gets it when it has answered the
    /// calls before.
    fn answer_request(&mut self, tag: u64, status: Status) {
        match &mut self.peer {
            Peer::External(external) => {
                let (kind, status) = (kind::DONE, status.0);
                external.sender.push(&Submission { tag, kind, status, ..Submission::default() });
            }
            Peer::Local(_) => self.unsent.push_back(Notice::Done(tag, status)),
            Peer::Absent => {}
        }
    }
}
