//! Command line of `sluice bench`.

use super::calls::CallArgs;
use super::cell::{BlockSize, Drives, Mix, Pattern, QueueDepth, Queues, Shape, Target};
use super::cipher::CipherArgs;
use super::client::Doorbells;
use super::clients::ClientArgs;
use super::grid::{Axes, Grid};
use super::idle::IdleArgs;
use super::instructions::InstructionArgs;
use super::line::LineRange;
use super::tail::TailArgs;
use super::tcp::TcpArgs;
use clap::{Args, Subcommand};
use sluice_spec::error::ApiError;
use std::path::PathBuf;
use std::time::Duration;

/// `sluice bench`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(super) other: Option<Other>,
    #[command(flatten)]
    pub(super) cells: CellArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum Other {
    /// Count the instructions of a command: the same number in every run
    Instructions(InstructionArgs),
    /// Measure and count the cost of a call of a classifier, in eBPF and in Rust
    Classifier(CallArgs),
    /// Measure the cost of drives that no host uses
    Idle(IdleArgs),
    /// Measure many clients on one daemon: creation, attachment, memory and I/O of all together
    Clients(ClientArgs),
    /// Measure the cost of encryption for each byte, beside the bare cipher
    Cipher(CipherArgs),
    /// Measure NVMe/TCP on this machine's loopback, Sluice's host against Sluice's controller
    Tcp(TcpArgs),
    /// Measure the time of the slowest commands over NVMe/TCP, at every depth
    Tail(Box<TailArgs>),
}

/// Cells to measure, and the way to measure them. Lists are separated by commas; every combination is a cell.
#[derive(Debug, Args)]
pub struct CellArgs {
    /// Targets: null, memory, memory:SIZE or file:PATH; pass@daemon:TARGET, pass@process:TARGET and the same with
    /// encrypt, mirror or replicate put a function over one
    #[arg(long, value_delimiter = ',', default_value = "null")]
    target: Vec<Target>,
    /// A drive of a daemon that runs already: its socket DIR/cntrl
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["target", "direct", "drives"])]
    connect: Option<PathBuf>,
    /// A whole set of cells
    #[arg(long, value_enum, conflicts_with_all = ["block_size", "queue_depth", "queues", "pattern", "mix", "drives"])]
    grid: Option<Grid>,
    /// Bytes of a command: 512 to 1MiB
    #[arg(long, value_delimiter = ',', value_name = "SIZE", default_value = "4KiB")]
    block_size: Vec<BlockSize>,
    /// Commands in flight in each queue
    #[arg(long, value_delimiter = ',', value_name = "COMMANDS", default_value = "1,32,128")]
    queue_depth: Vec<QueueDepth>,
    /// Queue pairs
    #[arg(long, value_delimiter = ',', value_name = "PAIRS", default_value = "1")]
    queues: Vec<Queues>,
    /// Order of the commands' addresses
    #[arg(long, value_enum, value_delimiter = ',', default_value = "random")]
    pattern: Vec<Pattern>,
    /// Commands: read, write, or a share of reads such as 70%
    #[arg(long, value_delimiter = ',', default_value = "read")]
    mix: Vec<Mix>,
    /// Drives under load at the same time, all on one reactor
    #[arg(long, value_delimiter = ',', default_value = "1")]
    drives: Vec<Drives>,
    /// Way in which doorbells reach the reactor
    #[arg(long, value_enum, default_value = "mapped")]
    doorbells: Doorbells,
    /// Seconds of a run; the floor beside it takes as long again
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    time: Duration,
    /// Runs of each cell; the median counts
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=9999))]
    runs: u32,
    /// Make only runs in which a cache line goes from one processor to the other and back in this many
    /// nanoseconds, such as 300..500
    #[arg(long, value_name = "MIN..MAX", conflicts_with_all = ["rate", "first_command"])]
    line_ns: Option<LineRange>,
    /// Seconds that each cell may wait for its --line-ns
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = wait_seconds, requires = "line_ns")]
    wait: Duration,
    /// Begin this many commands a second, instead of as many as possible
    #[arg(long, value_name = "COMMANDS", num_args = 0..=1, default_missing_value = "10000",
        value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "first_command")]
    rate: Option<u32>,
    /// Measure this many single commands, each after an idle second
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "10",
        value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with_all = ["drives", "direct"])]
    first_command: Option<u32>,
    /// Drive each target directly as well, without a controller, a queue and a socket
    #[arg(long, conflicts_with_all = ["rate", "first_command", "drives"])]
    direct: bool,
    /// Write to a file, a block device or another daemon's drive: the data there is lost
    #[arg(long)]
    overwrite: bool,
}

/// Pace of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Full speed, up to the queue depth.
    FlatOut,
    /// Number of commands a second.
    Rate(u32),
    /// Number of single commands, each after an idle second.
    First(u32),
}

/// Settings that are decided before the first run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub targets: Vec<Target>,
    pub cells: Vec<Shape>,
    pub doorbells: Doorbells,
    pub pace: Pace,
    pub direct: bool,
    pub time: Duration,
    pub runs: u32,
    /// Distance that the processors must have.
    pub line: Option<LineRange>,
    /// Time limit of each cell for the wait until the processors have that distance.
    pub wait: Duration,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.001..=86_400.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is not a time in seconds: use 0.001 to 86400")),
    }
}

fn wait_seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.0..=86_400.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is not a time in seconds: use 0 to 86400")),
    }
}

impl CellArgs {
    pub fn plan(&self) -> Result<Plan, ApiError> {
        let targets = match &self.connect {
            Some(socket) => vec![Target::Daemon(socket.clone())],
            None => self.target.clone(),
        };
        let plan = Plan {
            targets,
            cells: self.grid.map_or_else(|| self.axes().cells(), Grid::cells),
            doorbells: self.doorbells,
            pace: self.pace(),
            direct: self.direct,
            time: self.time,
            runs: self.runs,
            line: self.line_ns,
            wait: self.wait,
        };
        self.check(&plan)?;
        Ok(plan)
    }

    fn axes(&self) -> Axes {
        Axes {
            block_sizes: self.block_size.clone(),
            queue_depths: self.queue_depth.clone(),
            queues: self.queues.clone(),
            patterns: self.pattern.clone(),
            mixes: self.mix.clone(),
            drives: self.drives.clone(),
        }
    }

    fn pace(&self) -> Pace {
        match (self.rate, self.first_command) {
            (Some(rate), _) => Pace::Rate(rate),
            (_, Some(times)) => Pace::First(times),
            _ => Pace::FlatOut,
        }
    }

    fn check(&self, plan: &Plan) -> Result<(), ApiError> {
        let precious = plan.targets.iter().find(|target| target.is_precious());
        match precious {
            Some(target) if !self.overwrite && plan.cells.iter().any(|cell| cell.mix.writes()) => {
                Err(ApiError::invalid(format!("writes would destroy what is on {target}"))
                    .hint("--overwrite says that nobody wants it; --mix read does no harm"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(words: &str) -> Result<Plan, String> {
        let line = Line::try_parse_from(["bench"].into_iter().chain(words.split_whitespace()));
        line.map_err(|error| error.to_string())?.bench.cells.plan().map_err(|problem| problem.error)
    }

    #[test]
    fn without_a_word_it_measures_what_the_floor_measures() {
        let plan = plan("").expect("no word is needed");
        let cells: Vec<String> = plan.cells.iter().map(Shape::to_string).collect();
        assert_eq!(cells, ["1", "32", "128"].map(|depth| format!("random read 4KiB, QD {depth}")));
        assert_eq!((plan.targets.len(), plan.pace, plan.runs), (1, Pace::FlatOut, 25));
        assert_eq!((plan.time, plan.line, plan.wait), (Duration::from_millis(100), None, Duration::ZERO));
    }

    #[test]
    fn lists_are_multiplied() {
        let plan = plan(
            "--target null,memory:1GiB --block-size 512,128KiB --queue-depth 1,256 --queues 1,4 \
             --pattern random,sequential --mix read,write,70% --time 0.5 --runs 3",
        );
        let plan = plan.expect("all of it is right");
        assert_eq!((plan.targets.len(), plan.cells.len()), (2, 2 * 2 * 2 * 2 * 3));
        assert_eq!((plan.time, plan.runs), (Duration::from_millis(500), 3));
    }

    #[test]
    fn a_placement_and_how_long_to_wait_for_it() {
        let asked = plan("--line-ns 300..500 --wait 1.5").expect("both are right");
        assert_eq!((asked.line, asked.wait), ("300..500".parse().ok(), Duration::from_millis(1500)));
        for words in ["--wait 5", "--line-ns 300..500 --rate", "--line-ns 300", "--line-ns ..9 --wait -1"] {
            assert!(plan(words).is_err(), "{words}");
        }
    }

    #[test]
    fn paces() {
        assert_eq!(plan("--rate").map(|plan| plan.pace), Ok(Pace::Rate(10_000)));
        assert_eq!(plan("--rate 500").map(|plan| plan.pace), Ok(Pace::Rate(500)));
        assert_eq!(plan("--first-command").map(|plan| plan.pace), Ok(Pace::First(10)));
        assert!(plan("--rate --first-command").is_err());
    }

    #[test]
    fn what_somebody_may_want_is_not_written_to() {
        for target in ["--target null,file:/disk", "--connect /run/drive/cntrl"] {
            assert!(plan(target).is_ok());
            let refused = plan(&format!("{target} --mix 99%"));
            assert!(refused.is_err_and(|words| words.contains("would destroy")));
            assert!(plan(&format!("{target} --mix write --overwrite")).is_ok());
        }
        assert!(plan("--grid quick --target memory").is_ok());
    }

    #[test]
    fn mistakes_are_refused() {
        for words in ["--queue-depth 0", "--time 0", "--runs 0", "--grid huge", "--grid quick --mix read"] {
            assert!(plan(words).is_err(), "{words}");
        }
    }
}
