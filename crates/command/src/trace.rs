//! Times of single commands on their way, while an operator traces a drive.
//!
//! A traced command has a frame of no layer below all others. The stack meets this frame when the command is back
//! from its topmost layer, and notes the time. So commands that are not traced pay nothing.

use crate::frame::Frame;
use crate::{Command, NodeId, Slab, SlotState};
use quanta::Clock;

/// Node of the frames of traced commands. No layer has this number.
pub(crate) const TRACED: NodeId = NodeId(u8::MAX);

/// Commands that are traced at a time; further ones are not traced.
pub const TRACED_MAX: usize = 32;

/// Times of a traced command, in ticks of the trace's clock. Zero stands for a stage that it did not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// The command was taken out of its queue.
    pub fetched: u64,
    /// The classifier returned its verdict.
    pub classified: u64,
    /// The command, or its first leg, entered the layers.
    pub sent: u64,
    /// The command, or its first leg, was back from the layers.
    pub returned: u64,
    /// Path that the command took first.
    pub path: u8,
}

/// Stage of a traced command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStage {
    Classified,
    /// Entered the layers on this path.
    Sent(u8),
    Returned,
}

/// Traced commands that are in flight.
#[derive(Debug)]
pub struct Trace {
    clock: Clock,
    commands: Vec<Traced>,
}

#[derive(Clone, Copy, Debug)]
struct Traced {
    index: u32,
    /// Stamp of the command, which its slot's next command does not have.
    stamp: u64,
    times: StageTimes,
}

impl Trace {
    /// Creates a trace without commands.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, commands: Vec::with_capacity(TRACED_MAX) }
    }

    fn note(&mut self, index: usize, stage: TraceStage) {
        let Some(traced) = self.commands.iter_mut().find(|it| it.index as usize == index) else { return };
        let (now, times) = (self.clock.raw(), &mut traced.times);
        match stage {
            TraceStage::Classified => times.classified = now,
            TraceStage::Sent(path) if times.sent == 0 => (times.sent, times.path) = (now, path),
            // A later leg, or a later step.
            TraceStage::Sent(_) => {}
            TraceStage::Returned => times.returned = now,
        }
    }
}

impl Slab {
    /// Begins or ends the trace of commands. Commands in flight are not traced any more.
    pub fn set_trace(&mut self, trace: Option<Trace>) {
        self.trace = trace.map(Box::new);
    }

    /// Traces a command that was just admitted with a stamp, and notes that it was fetched. Returns false if too many
    /// are traced already. The command's [origin](crate::Origin::timed) is timed: only such stamps are of one command.
    #[cold]
    pub fn begin_trace(&mut self, command: &Command) -> bool {
        let Self { trace, slots, .. } = self;
        let Some(trace) = trace else { return false };
        let index = command.index() as u32;
        // Commands that were abandoned have left their entries here.
        let is_current = |it: &Traced| {
            let slot = &slots[it.index as usize];
            let is_live = slot.state != SlotState::Free && slot.origin.timed;
            it.index != index && is_live && slot.stamp == it.stamp
        };
        trace.commands.retain(is_current);
        if trace.commands.len() == TRACED_MAX {
            return false;
        }
        let slot = &mut slots[command.index()];
        let times = StageTimes { fetched: trace.clock.raw(), ..StageTimes::default() };
        trace.commands.push(Traced { index, stamp: slot.stamp, times });
        slot.frames.push(Frame { node: TRACED, stage: 0, data: [0; 2] });
        true
    }

    /// Notes that a command, if it is traced, is at this stage.
    #[cold]
    pub fn note_stage(&mut self, command: &Command, stage: TraceStage) {
        if let Some(trace) = &mut self.trace {
            trace.note(command.index(), stage);
        }
    }

    /// Returns whether commands are traced.
    #[inline]
    pub fn is_tracing(&self) -> bool {
        self.trace.is_some()
    }

    /// Ends the trace of a command, and returns its times; none if it was not traced.
    #[cold]
    pub fn end_trace(&mut self, command: &Command) -> Option<StageTimes> {
        let stamp = self.slot(command).stamp;
        let commands = &mut self.trace.as_mut()?.commands;
        let found =
            commands.iter().position(|it| it.index as usize == command.index() && it.stamp == stamp)?;
        Some(commands.swap_remove(found).times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Origin};

    fn admit(slab: &mut Slab, stamp: u64) -> Command {
        let origin = Origin { sq: 1, timed: true, ..Origin::default() };
        slab.admit_stamped([0; 8], origin, stamp).expect("there is room")
    }

    #[test]
    fn a_command_has_the_times_of_its_stages() {
        let (clock, time) = Clock::mock();
        let mut slab = Slab::new(Limits::new(64, 0)).expect("a slab");
        let early = admit(&mut slab, 7);
        assert!(!slab.begin_trace(&early) && slab.end_trace(&early).is_none(), "nothing is traced");
        slab.set_trace(Some(Trace::new(clock)));
        time.increment(5_u64);
        let command = admit(&mut slab, 9);
        assert!(slab.begin_trace(&command));
        for (stage, ns) in
            [(TraceStage::Classified, 10), (TraceStage::Sent(3), 20), (TraceStage::Returned, 30)]
        {
            time.increment(ns as u64);
            slab.note_stage(&command, stage);
            slab.note_stage(&early, stage);
        }
        let times = StageTimes { fetched: 5, classified: 15, sent: 35, returned: 65, path: 3 };
        assert_eq!((slab.end_trace(&command), slab.end_trace(&command)), (Some(times), None));
        assert_eq!(slab.end_trace(&early), None);
        [early, command].into_iter().for_each(|command| slab.release(command));
    }

    /// Checks two traced commands: each has its own times, and those of its first leg.
    #[test]
    fn a_later_leg_and_another_command_change_nothing() {
        let (clock, time) = Clock::mock();
        let mut slab = Slab::new(Limits::new(4, 0)).expect("a slab");
        assert!(!slab.is_tracing());
        slab.set_trace(Some(Trace::new(clock)));
        assert!(slab.is_tracing());
        let commands = [1, 2].map(|stamp| admit(&mut slab, stamp));
        for command in &commands {
            time.increment(1_u64);
            assert!(slab.begin_trace(command));
        }
        for (at, path) in [(0, 4), (1, 5), (0, 6)] {
            time.increment(10_u64);
            slab.note_stage(&commands[at], TraceStage::Sent(path));
        }
        let times = |fetched, sent, path| Some(StageTimes { fetched, sent, path, ..StageTimes::default() });
        // The slot has another command now.
        slab.slot_mut(&commands[0]).stamp = 9;
        assert_eq!(slab.end_trace(&commands[0]), None);
        slab.slot_mut(&commands[0]).stamp = 1;
        assert_eq!(slab.end_trace(&commands[1]), times(2, 22, 5));
        assert_eq!(slab.end_trace(&commands[0]), times(1, 12, 4));
        commands.into_iter().for_each(|command| slab.release(command));
    }

    /// Checks traced commands that end before they enter the layers, more of them than a command has frames.
    #[test]
    fn a_slot_keeps_nothing_of_a_traced_command() {
        let mut slab = Slab::new(Limits::new(1, 0)).expect("a slab");
        slab.set_trace(Some(Trace::new(Clock::mock().0)));
        for stamp in 0..20 {
            let command = admit(&mut slab, stamp);
            assert!(slab.slot(&command).frames.is_empty() && slab.begin_trace(&command));
            assert!(slab.end_trace(&command).is_some());
            slab.release(command);
        }
    }

    /// Checks that a place is free again as soon as its slot has another command, or none.
    #[test]
    fn commands_in_flight_keep_their_places() {
        let mut slab = Slab::new(Limits::new(64, 0)).expect("a slab");
        slab.set_trace(Some(Trace::new(Clock::mock().0)));
        let mut commands: Vec<_> = (0..40).map(|stamp| admit(&mut slab, stamp)).collect();
        assert_eq!(commands.iter().filter(|command| slab.begin_trace(command)).count(), TRACED_MAX);
        let late = commands.pop().expect("forty");
        assert!(!slab.begin_trace(&late), "all others are in flight");
        slab.release(commands.remove(0));
        assert!(slab.begin_trace(&late));
        // Its slot's next command has another stamp, and is not traced.
        slab.release(commands.remove(0));
        commands.push(admit(&mut slab, 99));
        let later = commands.remove(33);
        assert!(slab.begin_trace(&later) && !slab.begin_trace(&commands[33]));
        commands.extend([late, later]);
        commands.into_iter().for_each(|command| slab.release(command));
    }

    #[test]
    fn abandoned_commands_take_no_place_for_ever() {
        let mut slab = Slab::new(Limits::new(64, 0)).expect("a slab");
        slab.set_trace(Some(Trace::new(Clock::mock().0)));
        for round in 0..3 {
            let commands: Vec<_> = (0..40).map(|number| admit(&mut slab, round * 100 + number)).collect();
            let traced = commands.iter().filter(|command| slab.begin_trace(command)).count();
            assert_eq!(traced, TRACED_MAX, "round {round}");
            commands.into_iter().for_each(|command| slab.release(command));
        }
    }
}
