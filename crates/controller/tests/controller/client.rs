//! Client that accesses the host's memory for the controller: late, in any order, and with DMA requests of
//! any size.

use sluice_controller::{Attached, DMA_REQUESTS_MAX, DmaRequest};
use sluice_memory::SharedRegion;

/// Behavior of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Willing,
    /// Requests are taken, and no reply comes.
    Silent,
    /// Requests for data fail; those for queues do not.
    Refuses,
    RefusesAll,
}

#[derive(Default)]
pub(crate) struct Client {
    random: u64,
    pub(crate) mood: Mood,
    /// Requests with the bytes to write.
    taken: Vec<(DmaRequest, Vec<u8>)>,
    /// Bytes of the largest DMA request.
    pub(crate) most: usize,
    pub(crate) requests: u64,
    /// Whether a request was answered, after which a turn must follow.
    answered: bool,
}

impl Client {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, most: 64 << 10, ..Self::default() }
    }

    /// Returns a number below `limit`.
    pub(crate) fn any(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// Returns whether the client has memory, and has answered no request since the last call.
    pub(crate) fn is_quiet(&mut self) -> bool {
        !std::mem::take(&mut self.answered) && self.most > 0
    }

    /// Returns whether a requested write is pending.
    pub(crate) fn is_to_write(&self) -> bool {
        self.taken.iter().any(|(request, _)| request.writes)
    }

    /// Takes all requests and answers some of them. Returns the amount of work.
    pub(crate) fn serve(
        &mut self,
        controller: &mut Attached,
        memory: &SharedRegion,
        base: u64,
        now_ns: u64,
    ) -> usize {
        let mut data = Vec::new();
        let most = self.any(self.most.max(1) as u64) as usize + 1;
        loop {
            let has_requests = controller.controller.has_dma_requests();
            let taken = controller.controller.take_dma_request(most, &mut data, now_ns);
            let is_full = self.taken.len() >= DMA_REQUESTS_MAX;
            assert_eq!(taken.is_some(), has_requests && !is_full, "a front-end looks for requests first");
            let Some(request) = taken else { break };
            assert!(request.length > 0 && request.length <= most, "{request:?}");
            self.requests += 1;
            self.taken.push((request, data.clone()));
        }
        if self.taken.is_empty() || self.mood == Mood::Silent {
            return 0;
        }
        self.answered = true;
        for _ in 0..=self.any(self.taken.len() as u64) {
            let which = self.any(self.taken.len() as u64) as usize;
            let (request, data) = self.taken.swap_remove(which);
            let offset = (request.address - base) as usize;
            // Queues have small requests, data has large ones.
            let refuses = self.mood == Mood::RefusesAll || self.mood == Mood::Refuses && request.length > 64;
            if refuses {
                controller.controller.complete_dma_request(request.id, None);
            } else if request.writes {
                memory.write(offset, &data);
                controller.controller.complete_dma_request(request.id, Some(&[]));
            } else {
                let mut bytes = vec![0; request.length];
                memory.read(offset, &mut bytes);
                controller.controller.complete_dma_request(request.id, Some(&bytes));
            }
        }
        1
    }
}
