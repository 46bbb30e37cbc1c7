//! What is counted.

use clap::{Args, ValueEnum};
use serde::Serialize;
use sluice_controller::FETCH_MAX;
use std::fmt;

/// One side, one kind of command on one stack, so many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args, Serialize)]
pub struct Scenario {
    #[arg(long)]
    pub side: Side,
    #[arg(long)]
    pub target: Target,
    #[arg(long)]
    pub function: Function,
    #[arg(long)]
    pub classifier: Classifier,
    #[arg(long)]
    pub operation: Operation,
    /// Commands in one turn.
    #[arg(long)]
    pub batch: u32,
}

/// Whose turn is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    Controller,
    /// What keeps the controller busy in every other measurement: reaping, filling up and ringing.
    Host,
    /// A classifier alone: calls of it, not turns.
    Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    Null,
    Memory,
}

/// What stands over the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Function {
    None,
    Pass,
    /// A pass that sees every command again on its way up.
    PassWatching,
    /// A delay of nothing.
    Delay,
    /// A fault function without rules.
    Fault,
}

/// Who decides where commands go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Classifier {
    /// Nobody: all take the first path.
    None,
    /// A Rust function that sends everything down the first path.
    Native,
    /// An eBPF program that does the same.
    Ebpf,
    /// A Rust function that looks a window up, checks it, moves the command and counts.
    NativeWindow,
    /// An eBPF program that does the same, in 56 instructions.
    EbpfWindow,
}

/// Those that are called alone, too: they do the same.
pub(super) const CALLED: [Classifier; 2] = [Classifier::NativeWindow, Classifier::EbpfWindow];

/// Reads and writes are of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Read,
    Write,
    Flush,
}

/// Entries of either ring: so many that what happens once a round does not matter.
pub(super) const RING: u32 = 1024;

/// Commands in one turn: alone, some, many.
pub(super) const BATCHES: [u32; 3] = [1, 8, 32];

pub(super) const TARGETS: [Target; 2] = [Target::Null, Target::Memory];
pub(super) const OPERATIONS: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Flush];
/// All that add something.
pub(super) const FUNCTIONS: [Function; 4] =
    [Function::Pass, Function::PassWatching, Function::Delay, Function::Fault];
/// All that add something.
pub(super) const CLASSIFIERS: [Classifier; 4] =
    [Classifier::Native, Classifier::Ebpf, Classifier::NativeWindow, Classifier::EbpfWindow];

impl Scenario {
    /// As the child's command line spells it.
    pub fn arguments(&self) -> [String; 12] {
        let words = [
            "--side",
            self.side.word(),
            "--target",
            self.target.word(),
            "--function",
            self.function.word(),
            "--classifier",
            self.classifier.word(),
            "--operation",
            self.operation.word(),
            "--batch",
        ];
        let [a, b, c, d, e, f, g, h, i, j, k] = words.map(str::to_owned);
        [a, b, c, d, e, f, g, h, i, j, k, self.batch.to_string()]
    }

    /// Turns that are counted. More of short ones, to see whether they are all alike.
    pub fn turns(&self) -> u32 {
        (16 / self.batch).max(2)
    }

    /// True if a controller takes so many commands in one turn.
    pub fn is_possible(&self) -> bool {
        (1..=FETCH_MAX).contains(&self.batch)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, target, function, classifier, operation, batch } = self;
        write!(f, "{}: {} on {}", side.word(), operation.word(), target.word())?;
        if *function != Function::None {
            write!(f, " under {}", function.word())?;
        }
        if *classifier != Classifier::None {
            write!(f, " classified by {}", classifier.word())?;
        }
        write!(f, ", {batch} in a turn")
    }
}

/// The word of a value on the command line and in tables.
macro_rules! words {
    ($($kind:ty { $($value:ident = $word:literal,)+ })+) => {$(
        impl $kind {
            pub fn word(self) -> &'static str {
                match self { $(Self::$value => $word,)+ }
            }
        }
    )+};
}

words! {
    Side { Controller = "controller", Host = "host", Call = "call", }
    Target { Null = "null", Memory = "memory", }
    Function {
        None = "none",
        Pass = "pass",
        PassWatching = "pass-watching",
        Delay = "delay",
        Fault = "fault",
    }
    Classifier {
        None = "none",
        Native = "native",
        Ebpf = "ebpf",
        NativeWindow = "native-window",
        EbpfWindow = "ebpf-window",
    }
    Operation { Read = "read", Write = "write", Flush = "flush", }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        scenario: Scenario,
    }

    #[test]
    fn the_child_understands_what_the_parent_says() {
        for &function in Function::value_variants() {
            let (target, operation) = (Target::Memory, Operation::Flush);
            let classifier = Classifier::EbpfWindow;
            let scenario = Scenario { side: Side::Host, target, function, classifier, operation, batch: 8 };
            let line = ["child".to_owned()].into_iter().chain(scenario.arguments());
            assert_eq!(Line::parse_from(line).scenario, scenario);
        }
    }

    #[test]
    fn batches_fit_a_turn() {
        let batch = |batch| Scenario {
            side: Side::Controller,
            target: Target::Null,
            function: Function::None,
            classifier: Classifier::None,
            operation: Operation::Read,
            batch,
        };
        assert!(BATCHES.into_iter().all(|count| batch(count).is_possible()));
        assert!([0, FETCH_MAX + 1].into_iter().all(|count| !batch(count).is_possible()));
    }
}
