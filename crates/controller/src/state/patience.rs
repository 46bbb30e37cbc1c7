//! Commands that wait for longer than their host is going to.
//!
//! A host gives up a command after a time of its own, 30 s for Linux. It aborts the command, then resets the
//! controller, and in the end its file systems become read-only. A command that only waits is answered before
//! that with Command Interrupted (Base 3.3.3.2.1), and the host submits it again after the retry delay. Linux does that
//! five times, and with these delays for more than ten minutes.

use sluice_nvme::Status;

const NS_PER_S: u64 = 1_000_000_000;

/// Parts of the host's timeout. The commands in flight are looked at after each of them.
const PARTS: u64 = 6;

/// Looks after the first that a command may be found by. So it is answered after four to five of six parts.
const LOOKS: u8 = 4;

/// Retry delays of Identify Controller (CRDT1 to CRDT3), in units of 100 ms.
pub(crate) const RETRY_DELAYS: [u16; 3] = [100, 600, 1500];

/// Ages of an outage from which on the second and the third delay are used.
const LONGER_NS: [u64; 2] = [30 * NS_PER_S, 90 * NS_PER_S];

/// Time without a waiting command after which an outage is over.
const OVER_NS: u64 = 300 * NS_PER_S;

/// Command in flight. A slot whose next command is the same again looks like one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// Number in the slab.
    pub(crate) number: usize,
    pub(crate) sq: u16,
    pub(crate) cid: u16,
    pub(crate) opcode: u8,
    /// Bytes.
    pub(crate) offset: u64,
}

/// Watch over the commands of one controller.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Interval of the looks; zero if the host waits for ever.
    interval_ns: u64,
    /// Time of the next look; `u64::MAX` for none.
    next_ns: u64,
    /// Commands of the last look, each with the number of looks before that found it.
    seen: Vec<(InFlight, u8)>,
    /// Times of the first and the last command that waited too long.
    outage: Option<(u64, u64)>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { interval_ns: 0, next_ns: u64::MAX, seen: Vec::new(), outage: None }
    }
}

impl Patience {
    /// Returns whether no look is planned.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.next_ns == u64::MAX
    }

    /// Plans the first look, since the host submits commands that it waits for so long; zero for ever.
    #[cold]
    pub(crate) fn start(&mut self, timeout_ns: u64, now_ns: u64) {
        self.interval_ns = timeout_ns / PARTS;
        self.plan(now_ns);
    }

    fn plan(&mut self, now_ns: u64) {
        self.next_ns = if self.interval_ns > 0 { now_ns.saturating_add(self.interval_ns) } else { u64::MAX };
    }

    /// Returns the time of the next look, `u64::MAX` for none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Returns whether it is time for a look.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.next_ns <= now_ns && !self.is_stopped()
    }

    /// Looks at the commands in flight. Returns the ones that waited too long. Without commands the looks stop
    /// until the [start](Self::start).
    pub(crate) fn look(&mut self, now: impl Iterator<Item = InFlight>, now_ns: u64) -> Vec<InFlight> {
        let before = std::mem::take(&mut self.seen);
        let looks =
            |it: &InFlight| before.iter().find(|(seen, _)| seen == it).map_or(0, |(_, looks)| looks + 1);
        // No command is older than the limit by more than a look: it is answered at every one.
        self.seen = now.map(|it| (it, looks(&it).min(LOOKS))).collect();
        self.next_ns = u64::MAX;
        if !self.seen.is_empty() {
            self.plan(now_ns);
        }
        let late: Vec<_> = self.seen.iter().filter(|(_, looks)| *looks >= LOOKS).map(|(it, _)| *it).collect();
        if !late.is_empty() {
            let is_same = |(_, last_ns): &(u64, u64)| now_ns.saturating_sub(*last_ns) < OVER_NS;
            let first_ns = self.outage.filter(is_same).map_or(now_ns, |(first_ns, _)| first_ns);
            self.outage = Some((first_ns, now_ns));
        }
        late
    }

    /// Returns the status of commands that waited too long. The retry delay is for hosts that use it
    /// (Host Behavior Support, ACRE), and grows with the outage.
    pub(crate) fn status(&self, with_delay: bool) -> Status {
        let age_ns = self.outage.map_or(0, |(first_ns, last_ns)| last_ns - first_ns);
        let longer = LONGER_NS.iter().filter(|from_ns| age_ns >= **from_ns).count() as u16;
        Status::COMMAND_INTERRUPTED.with_retry_delay(if with_delay { longer + 1 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: u64 = 30 * NS_PER_S;

    fn command(cid: u16) -> InFlight {
        InFlight { number: 7, sq: 1, cid, opcode: 1, offset: 4096 }
    }

    /// Runs an outage from second 0 on for a host that submits a command again after each delay. Returns the
    /// seconds of the answers.
    fn answers(patience: &mut Patience, retries: usize) -> Vec<u64> {
        let (mut now_ns, mut seconds) = (0, Vec::new());
        for cid in 0..=retries as u16 {
            patience.start(HOST, now_ns);
            let status = loop {
                now_ns = patience.next_ns();
                if !patience.look([command(cid)].into_iter(), now_ns).is_empty() {
                    break patience.status(true);
                }
            };
            seconds.push(now_ns / NS_PER_S);
            assert!(status.same_code(Status::COMMAND_INTERRUPTED));
            let delay = RETRY_DELAYS[usize::from(status.0 >> 11 & 3) - 1];
            now_ns += u64::from(delay) * NS_PER_S / 10;
        }
        seconds
    }

    #[test]
    fn five_retries_of_a_host_last_for_ten_minutes() {
        let seconds = answers(&mut Patience::default(), 5);
        assert_eq!(seconds, [25, 60, 145, 320, 495, 670]);
    }

    #[test]
    fn commands_that_come_and_go_are_not_late() {
        let mut patience = Patience::default();
        patience.start(HOST, 0);
        for cid in 0..100 {
            let now_ns = patience.next_ns();
            assert!(!patience.is_due(now_ns - 1) && patience.is_due(now_ns));
            assert!(patience.look([command(cid), command(cid + 1)].into_iter(), now_ns).is_empty());
        }
        assert!(patience.look(std::iter::empty(), 1000 * NS_PER_S).is_empty());
        assert!(patience.is_stopped());
    }

    #[test]
    fn a_new_outage_begins_with_the_shortest_delay_and_some_hosts_get_none() {
        let mut patience = Patience::default();
        answers(&mut patience, 3);
        assert_eq!(patience.status(true).0 >> 11 & 3, 3);
        assert_eq!(patience.status(false), Status::COMMAND_INTERRUPTED);
        patience.seen = vec![(command(1), LOOKS)];
        assert_eq!(patience.look([command(1)].into_iter(), 3600 * NS_PER_S), [command(1)]);
        assert_eq!(patience.status(true).0 >> 11 & 3, 1);
    }

    #[test]
    fn an_outage_is_over_after_five_minutes_without_a_waiting_command() {
        for (pause, expected) in [(299, 3), (300, 1)] {
            let mut patience = Patience::default();
            for second in [0, pause] {
                patience.seen = vec![(command(1), LOOKS)];
                assert_eq!(patience.look([command(1)].into_iter(), second * NS_PER_S), [command(1)]);
            }
            assert_eq!(patience.status(true).0 >> 11 & 3, expected, "{pause} s");
        }
        for (age, delay) in [(0, 1), (29, 1), (30, 2), (89, 2), (90, 3)] {
            let patience = Patience { outage: Some((NS_PER_S, (1 + age) * NS_PER_S)), ..Patience::default() };
            assert_eq!(patience.status(true).0 >> 11 & 3, delay, "{age} s");
        }
    }

    #[test]
    fn a_host_that_waits_for_ever_has_no_look() {
        let mut patience = Patience::default();
        patience.start(0, 5);
        assert!(!patience.is_due(u64::MAX));
        assert_eq!(patience.next_ns(), u64::MAX);
    }
}
