//! Scenarios that are counted.

use clap::{Args, ValueEnum};
use serde::Serialize;
use sluice_controller::{FETCH_MAX, TIMED_EVERY, TRACE_EVERY};
use sluice_spec::error::ApiError;
use std::fmt;

/// A side, a kind of command on a stack, and the number of commands at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args, Serialize)]
pub struct Scenario {
    #[arg(long)]
    pub transport: Transport,
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
    /// Commands in one turn; over NVMe/TCP and directly, commands in flight.
    #[arg(long)]
    pub batch: u32,
    /// Whether the controller measures how long commands take.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub latency: bool,
    /// Whether the first of the counted commands is traced.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trace: bool,
}

/// Connection between a host and its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Memory that both have. Turns are counted, without their reactor's.
    Pcie,
    /// NVMe/TCP on the loopback device. Turns of whole reactors are counted.
    Tcp,
    /// No connection, and no controller either: a reactor drives the layers directly. Its whole turns are
    /// counted.
    Direct,
}

/// Side whose turn is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    Controller,
    /// Host that keeps the controller busy in every other measurement: reaping, filling up and ringing.
    Host,
    /// A classifier alone: its calls are counted, not turns.
    Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    Null,
    Memory,
    /// A pool of memory.
    MemoryPool,
    /// A pool of memory, whose user takes no extents in advance.
    MemoryPoolWithoutCredit,
}

impl Target {
    pub fn is_pool(self) -> bool {
        matches!(self, Self::MemoryPool | Self::MemoryPoolWithoutCredit)
    }
}

/// Function over the target.
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
    /// A function for limits, without any.
    Qos,
    /// A function for limits that are not reached, of commands and of bytes.
    QosLimited,
    /// A mirror in the daemon, of two members like the target, with a log in memory.
    Mirror,
    /// A replicate in the daemon, with a copy on a second target of the kind and a log in memory.
    Replicate,
}

/// Program that decides where commands go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Classifier {
    /// No classifier: all commands take the first path.
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

/// Classifiers that are called alone, too, and do the same.
pub(super) const CALLED: [Classifier; 2] = [Classifier::NativeWindow, Classifier::EbpfWindow];

/// Kind of command. Reads and writes are of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Read,
    Write,
    Flush,
    /// A write that takes an extent from a pool of memory.
    Allocate,
}

/// Entries of either ring: so many that work done once a round does not matter.
pub(super) const RING: u32 = 1024;

/// Commands in one turn: alone, some, many.
pub(super) const BATCHES: [u32; 3] = [1, 8, 32];

pub(super) const TARGETS: [Target; 2] = [Target::Null, Target::Memory];
pub(super) const OPERATIONS: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Flush];
/// Operations of a load over NVMe/TCP, and, in the next line, the sides on which they are counted.
pub(super) const TRANSFERS: [Operation; 2] = [Operation::Read, Operation::Write];
pub(super) const SIDES: [Side; 2] = [Side::Host, Side::Controller];
/// Functions that are driven directly.
pub(super) const DRIVEN: [Function; 3] = [Function::None, Function::Mirror, Function::Replicate];
/// Commands in a pool of memory, which are driven directly.
pub(super) const POOLED: [(Target, Operation); 4] = [
    (Target::MemoryPool, Operation::Read),
    (Target::MemoryPool, Operation::Write),
    (Target::MemoryPool, Operation::Allocate),
    (Target::MemoryPoolWithoutCredit, Operation::Allocate),
];
/// Functions that add something to a controller's turn.
pub(super) const FUNCTIONS: [Function; 6] = [
    Function::Pass,
    Function::PassWatching,
    Function::Delay,
    Function::Fault,
    Function::Qos,
    Function::QosLimited,
];
/// Classifiers that add something to a controller's turn.
pub(super) const CLASSIFIERS: [Classifier; 4] =
    [Classifier::Native, Classifier::Ebpf, Classifier::NativeWindow, Classifier::EbpfWindow];

/// Maximum number of commands in flight on a reactor.
const DEPTH_MAX: u32 = 128;

impl Scenario {
    /// A read on the null target, without a function and a classifier.
    pub const PLAIN: Self = Self {
        transport: Transport::Pcie,
        side: Side::Controller,
        target: Target::Null,
        function: Function::None,
        classifier: Classifier::None,
        operation: Operation::Read,
        batch: 1,
        latency: false,
        trace: false,
    };

    /// Returns the scenario as the arguments of the child's command line.
    pub fn arguments(&self) -> impl Iterator<Item = String> + use<> {
        let words = [
            ("--transport", self.transport.word()),
            ("--side", self.side.word()),
            ("--target", self.target.word()),
            ("--function", self.function.word()),
            ("--classifier", self.classifier.word()),
            ("--operation", self.operation.word()),
        ];
        let batch = ["--batch".to_owned(), self.batch.to_string()];
        let latency = self.latency.then(|| "--latency".to_owned());
        let trace = self.trace.then(|| "--trace".to_owned());
        let words = words.into_iter().flat_map(|(key, word)| [key.to_owned(), word.to_owned()]);
        words.chain(batch).chain(latency).chain(trace)
    }

    /// Returns the number of counted turns. There are more of short ones, to see whether they are all alike. Of writes
    /// that allocate there are 50, since credit is requested for one of 25. Of a trace there are so many that one command
    /// is traced, and of a measurement so many that one is timed.
    pub fn turns(&self) -> u32 {
        match self.operation {
            _ if self.trace => (TRACE_EVERY / self.batch).max(2),
            _ if self.latency => TIMED_EVERY.div_ceil(self.batch),
            Operation::Allocate => 50_u32.div_ceil(self.batch),
            Operation::Read | Operation::Write | Operation::Flush => (16 / self.batch).max(2),
        }
    }

    /// Returns the number of counted commands.
    pub fn commands(&self) -> u32 {
        self.turns() * self.batch
    }

    fn batch_max(&self) -> u32 {
        match self.transport {
            Transport::Pcie => FETCH_MAX,
            Transport::Tcp | Transport::Direct => DEPTH_MAX,
        }
    }

    /// Returns whether a controller takes this many commands in one turn, or at a time, and the function is
    /// possible here.
    pub fn is_possible(&self) -> bool {
        let has_place = self.has_place_for_function() && self.has_place_in_target();
        (1..=self.batch_max()).contains(&self.batch) && has_place
    }

    /// Returns whether the target has the commands. A pool needs a reactor, and only there a write allocates.
    fn has_place_in_target(&self) -> bool {
        match self.target.is_pool() {
            true => self.transport == Transport::Direct && self.function == Function::None,
            false => self.operation != Operation::Allocate,
        }
    }

    /// Returns whether the function is possible here. Mirror and replicate need a reactor, and a reactor that
    /// drives layers directly is a host.
    fn has_place_for_function(&self) -> bool {
        match self.transport {
            Transport::Direct => self.side == Side::Host && DRIVEN.contains(&self.function),
            Transport::Pcie | Transport::Tcp => {
                !matches!(self.function, Function::Mirror | Function::Replicate)
            }
        }
    }

    pub fn impossible(&self) -> ApiError {
        if !self.has_place_for_function() {
            return ApiError::invalid(format!("{} cannot be counted here", self.function.word()))
                .hint("use --transport direct --side host for mirror and replicate, and for nothing else");
        }
        if !self.has_place_in_target() {
            let (operation, target) = (self.operation.word(), self.target.word());
            return ApiError::invalid(format!("{operation} on {target} cannot be counted here")).hint(
                "use --transport direct --side host for pools of memory; only there a write allocates",
            );
        }
        let what = match self.transport {
            Transport::Pcie => "a turn cannot have",
            Transport::Tcp => "over NVMe/TCP there cannot be",
            Transport::Direct => "on a reactor there cannot be",
        };
        ApiError::invalid(format!("{what} {} commands", self.batch))
            .hint(format!("use 1 to {}", self.batch_max()))
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, side, target, function, classifier, operation, batch, latency, trace } = self;
        write!(f, "{}: {} on {}", side.word(), operation.word(), target.word())?;
        if *function != Function::None {
            write!(f, " under {}", function.word())?;
        }
        if *classifier != Classifier::None {
            write!(f, " classified by {}", classifier.word())?;
        }
        if *latency {
            write!(f, " measured")?;
        }
        if *trace {
            write!(f, " traced")?;
        }
        match transport {
            Transport::Pcie => write!(f, ", {batch} in a turn"),
            Transport::Tcp => write!(f, " over NVMe/TCP, {batch} under way"),
            Transport::Direct => write!(f, " driven directly, {batch} under way"),
        }
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
    Transport { Pcie = "pcie", Tcp = "tcp", Direct = "direct", }
    Side { Controller = "controller", Host = "host", Call = "call", }
    Target {
        Null = "null",
        Memory = "memory",
        MemoryPool = "memory-pool",
        MemoryPoolWithoutCredit = "memory-pool-without-credit",
    }
    Function {
        None = "none",
        Pass = "pass",
        PassWatching = "pass-watching",
        Delay = "delay",
        Fault = "fault",
        Qos = "qos",
        QosLimited = "qos-limited",
        Mirror = "mirror",
        Replicate = "replicate",
    }
    Classifier {
        None = "none",
        Native = "native",
        Ebpf = "ebpf",
        NativeWindow = "native-window",
        EbpfWindow = "ebpf-window",
    }
    Operation { Read = "read", Write = "write", Flush = "flush", Allocate = "allocate", }
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
            let scenario = Scenario {
                transport: Transport::Tcp,
                side: Side::Host,
                target: Target::Memory,
                function,
                classifier: Classifier::EbpfWindow,
                operation: Operation::Flush,
                batch: 8,
                latency: function == Function::Pass,
                trace: function == Function::Delay,
            };
            let line = ["child".to_owned()].into_iter().chain(scenario.arguments());
            assert_eq!(Line::parse_from(line).scenario, scenario);
        }
    }

    #[test]
    fn batches_fit_a_turn() {
        let possible = |transport, batch| Scenario { transport, batch, ..Scenario::PLAIN }.is_possible();
        for (transport, most) in [(Transport::Pcie, FETCH_MAX), (Transport::Tcp, DEPTH_MAX)] {
            assert!(BATCHES.into_iter().chain([most]).all(|batch| possible(transport, batch)));
            assert!([0, most + 1].into_iter().all(|batch| !possible(transport, batch)));
        }
    }

    #[test]
    fn a_pool_is_driven_directly_and_nothing_else_allocates() {
        let direct = Scenario { transport: Transport::Direct, side: Side::Host, ..Scenario::PLAIN };
        for (target, operation) in POOLED {
            let pooled = Scenario { target, operation, ..direct };
            assert!(pooled.is_possible());
            assert!(!Scenario { transport: Transport::Tcp, ..pooled }.is_possible());
            assert!(!Scenario { transport: Transport::Pcie, ..pooled }.is_possible());
            assert!(!Scenario { function: Function::Mirror, ..pooled }.is_possible());
        }
        assert!(!Scenario { operation: Operation::Allocate, ..direct }.is_possible());
        assert!(!Scenario { operation: Operation::Allocate, ..Scenario::PLAIN }.is_possible());
    }

    #[test]
    fn mirror_and_replicate_are_driven_directly_alone() {
        for function in [Function::Mirror, Function::Replicate] {
            let driven = Scenario { function, side: Side::Host, ..Scenario::PLAIN };
            let possible = |transport| Scenario { transport, ..driven }.is_possible();
            let transports = [Transport::Pcie, Transport::Tcp, Transport::Direct];
            assert_eq!(transports.map(possible), [false, false, true]);
            let direct = Scenario { transport: Transport::Direct, ..driven };
            assert!(!Scenario { side: Side::Controller, ..direct }.is_possible());
            assert!(!Scenario { function: Function::Pass, ..direct }.is_possible());
        }
    }
}
