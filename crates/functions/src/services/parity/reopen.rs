//! Opening of the array, and opening again after it has stopped.

use super::array::Array;
use super::{ParityFunction, settings};
use sluice_nvme::Status;
use sluice_redundancy::Members;
use sluice_redundancy::parity::{ArrayConfig, Parity};
use sluice_uif::Io;

/// Bounds of the delay between two attempts to open an array that has served, nanoseconds.
const RETRY_MIN_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 60_000_000_000;

/// Attempts to open an array that has stopped.
#[derive(Debug, Default)]
pub(super) struct Reopening {
    /// Whether the array has stopped, and is opened again when its requests are done.
    is_due: bool,
    /// Time of the next attempt after a failed one.
    pub(super) at_ns: Option<u64>,
    patience_ns: u64,
}

impl ParityFunction {
    /// Opens the array of these layers, or checks that an open one still fits.
    pub(super) fn layers_changed(&mut self, io: &mut Io<'_>) {
        let layers = io.layers().to_vec();
        let config = self.settings.config(&layers, self.id);
        match (&self.array, config) {
            (None, Ok(config)) => self.open(config, io),
            (None, Err(words)) => self.refuse(words, io),
            // An opening reports its end by itself.
            (Some(array), _) if !array.is_open && !array.is_refused => {}
            (Some(array), _) if array.is_refused => self.reopening.is_due = true,
            (Some(array), _) => {
                let sizes: Vec<u64> = layers.iter().map(|layer| layer.size).collect();
                let fits = self.settings.drive_bytes(&sizes) >= array.parity.size();
                io.ready(if fits { Status::SUCCESS } else { Status::NAMESPACE_NOT_READY });
            }
        }
    }

    fn open(&mut self, config: ArrayConfig, io: &mut Io<'_>) {
        let config = match self.was_open {
            // Members are new once.
            true => ArrayConfig { new: Members::NONE, ..config },
            false => config,
        };
        let log = config.geometry.members + config.spares;
        match Parity::new(config) {
            Ok(parity) => {
                self.array = Array::new(parity, log, io);
                if self.array.is_none() {
                    self.refuse("there is no memory".to_owned(), io);
                }
            }
            Err(words) => self.refuse(words, io),
        }
    }

    /// Handles the end of an opening.
    pub(super) fn opened(&mut self, outcome: Result<(), String>, io: &mut Io<'_>) {
        match outcome {
            Ok(()) => {
                self.was_open = true;
                self.reopening = Reopening::default();
                self.array.iter_mut().for_each(|array| (array.is_open, array.is_refused) = (true, false));
                io.ready(Status::SUCCESS);
            }
            Err(words) => self.refuse(words, io),
        }
        self.answer_order(io);
    }

    /// Fails commands, until an operator's order or another attempt.
    fn refuse(&mut self, words: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {words}", settings::NAME);
        self.error = words;
        self.array.iter_mut().for_each(|array| array.is_refused = true);
        io.ready(Status::NAMESPACE_NOT_READY);
        if self.was_open {
            let reopening = &mut self.reopening;
            reopening.patience_ns = (reopening.patience_ns * 2).clamp(RETRY_MIN_NS, RETRY_MAX_NS);
            reopening.at_ns = Some(io.now_ns() + reopening.patience_ns);
        }
    }

    /// Handles an array that has stopped: it is opened again, and its journal is replayed.
    pub(super) fn halted(&mut self, why: String, io: &mut Io<'_>) {
        tracing::error!("{} has stopped, and is opened again: {why}", settings::NAME);
        self.error = why;
        self.array.iter_mut().for_each(|array| array.is_open = false);
        self.reopening.is_due = true;
        io.ready(Status::NAMESPACE_NOT_READY);
    }

    /// Opens an array again that has stopped, when nothing is in flight.
    pub(super) fn reopen_if_drained(&mut self, io: &mut Io<'_>) {
        let is_time = self.reopening.at_ns.is_some_and(|at_ns| at_ns <= io.now_ns());
        if is_time {
            (self.reopening.at_ns, self.reopening.is_due) = (None, true);
        }
        let is_busy = self.array.as_ref().is_some_and(|array| array.in_flight > 0);
        if !self.reopening.is_due || is_busy {
            return;
        }
        self.reopening.is_due = false;
        self.array.take().into_iter().for_each(|array| array.close(io));
        self.layers_changed(io);
        self.run(io);
    }
}
