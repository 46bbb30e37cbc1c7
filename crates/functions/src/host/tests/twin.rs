//! Function that does everything itself: two copies, each behind a label of its own.

use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Data, Done, Function, Held, Interest, Io, Properties};
use std::collections::VecDeque;

/// Bytes of the label before the data.
pub(super) const LABEL: u64 = 4096;

/// Bytes of the layers below.
pub(super) const SIZES: [u64; 2] = [super::rig::SIZE + LABEL; 2];

const STARTING: u64 = u64::MAX;
const STAGE: u8 = 5;

/// Command, and the number of its requests that are not done.
struct Flight {
    held: Held,
    left: u32,
    status: Status,
}

pub(super) struct Twin {
    flights: Vec<Option<Flight>>,
    /// Requests for which there was no room: layer, request, flight.
    queue: VecDeque<(u8, Request, usize)>,
    reads: u8,
}

impl Twin {
    pub(super) fn new() -> Self {
        Self { flights: Vec::new(), queue: VecDeque::new(), reads: 0 }
    }

    fn begin(&mut self, call: &Call<'_>, layers: &[u8]) -> Answer {
        let free = self.flights.iter().position(Option::is_none);
        let index = free.unwrap_or(self.flights.len());
        if free.is_none() {
            self.flights.push(None);
        }
        let left = layers.len() as u32;
        self.flights[index] = Some(Flight { held: call.hold(), left, status: Status::SUCCESS });
        let offset = if call.request.operation == Operation::Flush { 0 } else { LABEL };
        let request = Request { offset: call.request.offset + offset, ..call.request };
        self.queue.extend(layers.iter().map(|layer| (*layer, request, index)));
        Answer::Hold
    }

    fn ask(&mut self, io: &mut Io<'_>) {
        while io.has_room()
            && let Some((layer, request, index)) = self.queue.pop_front()
        {
            let held = self.flights[index].as_ref().expect("it is in flight").held;
            let data = if request.has_data() { Data::Of(held, 0) } else { Data::None };
            io.request(layer, request, data, index as u64).expect("there is room");
        }
    }
}

impl Function for Twin {
    fn properties(&self) -> Properties {
        let properties = Properties { pool: 16 << 10, size: super::rig::SIZE, ..Properties::NONE };
        [Operation::Read, Operation::Write, Operation::Flush]
            .into_iter()
            .fold(properties, |properties, operation| properties.with(operation, Interest::Before))
    }

    fn start(&mut self, io: &mut Io<'_>) {
        assert_eq!(io.layers().len(), 2);
        assert!(io.layers().iter().all(|layer| layer.size == SIZES[0] && layer.block_size == 512));
        let label = io.buffer(512).expect("memory");
        let request = Request { length: 512, ..Request::default() };
        io.request(1, request, Data::Own(label), STARTING).expect("room");
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let answer = match call.request.operation {
            Operation::Read => {
                self.reads ^= 1;
                self.begin(call, &[self.reads])
            }
            _ => self.begin(call, &[0, 1]),
        };
        self.ask(io);
        answer
    }

    fn returned(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        assert_eq!(call.stage, STAGE);
        Answer::Finish(call.status)
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        if done.token == STARTING {
            io.release(done.buffer.expect("it was asked with one"));
            return io.ready(done.status);
        }
        let place = &mut self.flights[done.token as usize];
        let flight = place.as_mut().expect("it is in flight");
        flight.left -= 1;
        if !done.status.is_success() {
            flight.status = done.status;
        }
        if flight.left == 0 {
            let Flight { held, status, .. } = place.take().expect("it is in flight");
            io.resume(held, STAGE, status);
        }
        self.ask(io);
    }
}
