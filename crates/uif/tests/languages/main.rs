//! Functions in Rust, C and Python are equal: all three reply the same to the same entries, malformed ones
//! among them, and do the same to the data. Constants with the same name have the same value.

mod daemon;
mod exercise;
mod layout;

use daemon::{CONTROL_AT, Daemon, Peer, SLOT_BYTES, SLOTS, pair};
use exercise::Exercise;
use sluice_uif::abi::{Reply, Submission, disposition, flag, kind, operation};
use sluice_uif::serve::{Socket, serve};
use std::path::{Path, PathBuf};
use std::process::Command;

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk")
}

/// Compiles a program in C with the library.
fn compile(source: &str, name: &str) -> PathBuf {
    let (c, program) = (sdk().join("c"), Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    let library = ["sluice_uif.c", "sluice_serve.c", "sluice_sandbox.c"].map(|file| c.join(file));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]);
    compiler.arg("-fno-sanitize-recover").arg("-I").arg(&c).arg(c.join(source)).args(library);
    let done = compiler.arg("-o").arg(&program).status().expect("cc is there");
    assert!(done.success(), "{source} does not compile");
    program
}

fn in_c(name: &str) -> Command {
    let mut command = Command::new(compile("tests/exercise.c", name));
    // A confined process could not report the findings of the compiler's checks.
    command.arg("--unconfined");
    command
}

fn in_python() -> Command {
    let mut command = Command::new("python3");
    command.arg(sdk().join("python/tests/exercise.py")).env("PYTHONPATH", sdk().join("python"));
    command
}

fn process(command: Command, options: &str) -> Result<Daemon, String> {
    let (ours, theirs) = pair();
    Daemon::start(Peer::spawn(command, theirs), ours, options)
}

fn thread(options: &str) -> Result<Daemon, String> {
    let (ours, theirs) = pair();
    std::thread::spawn(|| {
        serve(Socket::Inherited(theirs), &mut |options| Exercise::open(options), || Ok(()))
    });
    Daemon::start(Peer::Thread, ours, options)
}

/// Entries of a daemon, from a seed: the same for all.
struct Script {
    random: u64,
    sent: u64,
    /// Commands that are out, by slot.
    slots: [Option<Submission>; SLOTS],
    /// Commands that were sent below and will return.
    back: Vec<Submission>,
    /// Requests that are to be answered.
    asked: Vec<u64>,
}

/// Number of commands that never had a slot.
const STRANGE: u64 = 1 << 40;

impl Script {
    fn new(seed: u64) -> Self {
        Self { random: seed, sent: 0, slots: [None; SLOTS], back: Vec::new(), asked: Vec::new() }
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn batch(&mut self, daemon: &mut Daemon) -> Vec<Submission> {
        (0..self.next(12) + 1).map(|_| self.entry(daemon)).collect()
    }

    fn entry(&mut self, daemon: &mut Daemon) -> Submission {
        let status = [0, 0, 0x280, 0x4080][self.next(4) as usize];
        match self.next(8) {
            0 if !self.back.is_empty() => {
                let entry = self.back.swap_remove(0);
                Submission { kind: kind::RETURNED, status, ..entry }
            }
            1 | 2 if !self.asked.is_empty() => {
                let tag = self.asked.swap_remove(0);
                Submission { tag, kind: kind::DONE, status, ..Submission::default() }
            }
            3 => self.strange(),
            _ => match self.slots.iter().position(Option::is_none) {
                Some(slot) => self.command(slot, daemon),
                None => self.strange(),
            },
        }
    }

    fn command(&mut self, slot: usize, daemon: &mut Daemon) -> Submission {
        self.sent += 1;
        let length = 512 * (self.next(8) + 1);
        let operation = self.next(4) as u8;
        let data: Vec<u8> = (0..length).map(|_| self.next(256) as u8).collect();
        let data_offset = slot * SLOT_BYTES;
        daemon.write(data_offset, &data);
        let entry = Submission {
            tag: self.sent << 32 | slot as u64,
            operation,
            flags: self.next(4) as u8,
            // Reads are shown on their return.
            kind: if operation == operation::READ { kind::RETURNED } else { kind::COMMAND },
            offset: 512 * self.next(1000),
            length,
            data_offset: data_offset as u32,
            data_length: length as u32,
            ..Submission::default()
        };
        self.slots[slot] = Some(entry);
        entry
    }

    /// Returns an entry that breaks the protocol.
    fn strange(&mut self) -> Submission {
        let tag = STRANGE + self.next(100);
        let entry = Submission { tag, ..Submission::default() };
        match self.next(7) {
            0 => Submission { kind: 99, ..entry },
            1 => Submission { tag: u64::MAX, kind: kind::DONE, ..entry },
            2 => Submission { tag: 63, kind: kind::DONE, ..entry },
            3 => Submission { data_offset: u32::MAX, data_length: 4096, ..entry },
            4 => Submission { operation: 77, flags: 0xff, kind: kind::RETURNED, ..entry },
            5 => Submission { kind: kind::BELOW, stage: 200, ..entry },
            _ => Submission { kind: kind::BELOW, stage: 6, offset: 1 << 40, length: u64::MAX, ..entry },
        }
    }

    /// Notes the progress of commands.
    fn follow(&mut self, replies: &[Reply]) {
        for reply in replies {
            match reply.disposition {
                disposition::REQUEST => self.asked.push(reply.tag),
                disposition::FORWARD_AND_RETURN => {
                    let slot = (reply.tag & 0xffff) as usize;
                    let entry = self.slots[slot].expect("it is out");
                    let (stage, cookie, length) = (reply.stage, reply.cookie, reply.length);
                    self.back.push(Submission { stage, cookie, length, ..entry });
                }
                disposition::FINISH | disposition::FORWARD if reply.tag < STRANGE && reply.tag >> 32 > 0 => {
                    self.slots[(reply.tag & 0xffff) as usize] = None;
                }
                _ => {}
            }
        }
    }
}

fn begin(daemon: &mut Daemon) {
    let below =
        |stage, offset| Submission { kind: kind::BELOW, stage, offset, length: 512, ..Submission::default() };
    let start = Submission { kind: kind::START, ..Submission::default() };
    let said = daemon.exchange(&[start]);
    assert_ne!(said[0].status, 0, "there is nothing below");
    let said = daemon.exchange(&[below(0, 1 << 20), below(1, 2 << 20), start]);
    assert_eq!((said[0].disposition, said[0].status), (disposition::READY, 0));
}

/// Sends an operator's order, and returns the answer if it comes at once.
fn send_order(daemon: &mut Daemon, number: u64, text: &str, flags: u8) -> Option<(u16, String)> {
    daemon.write(CONTROL_AT, text.as_bytes());
    let (data_offset, data_length) = (CONTROL_AT as u32, text.len() as u32);
    let tag = STRANGE << 1 | number;
    let control =
        Submission { tag, kind: kind::CONTROL, flags, data_offset, data_length, ..Submission::default() };
    let said = daemon.exchange(&[control]);
    said.first().map(|reply| (reply.status, words(daemon, reply)))
}

fn words(daemon: &Daemon, reply: &Reply) -> String {
    String::from_utf8(daemon.read(CONTROL_AT, reply.length as usize)).expect("text")
}

fn orders(daemon: &mut Daemon) {
    let ok = |text: &str| Some((0, text.to_owned()));
    assert_eq!(send_order(daemon, 1, "alarm", 0), ok("woken"));
    assert_eq!(send_order(daemon, 2, "fail", 0), Some((0x4002, "no".to_owned())));
    assert_eq!(send_order(daemon, 3, "fail", flag::QUIET), Some((0x4002, "no, quietly".to_owned())));
    let (_, long) = send_order(daemon, 4, "long", 0).expect("at once");
    assert_eq!(long, "€".repeat((64 << 10) / 3), "cut between two characters");
    let counted = send_order(daemon, 5, "metrics", 0).expect("at once").1;
    assert!(counted.starts_with("commands_total ") && counted.ends_with('\n'), "{counted}");
    // One at a time; but metrics are answered at any time.
    assert_eq!(send_order(daemon, 6, "later", 0), None);
    assert_eq!(send_order(daemon, 7, "fail", 0).map(|(status, _)| status), Some(0x4002));
    assert_eq!(send_order(daemon, 8, "metrics", 0), ok(&counted));
    let flush = Submission { tag: STRANGE, operation: operation::FLUSH, ..Submission::default() };
    let said = daemon.exchange(&[flush]);
    assert_eq!(said.len(), 2);
    let answer = said.iter().find(|reply| reply.tag == STRANGE << 1 | 6).expect("the order's");
    assert_eq!(words(daemon, answer), "flushed");
}

fn everything(daemon: &mut Daemon, seed: u64, batches: usize) {
    begin(daemon);
    let mut script = Script::new(seed);
    for _ in 0..batches {
        let entries = script.batch(daemon);
        let said = daemon.exchange(&entries);
        script.follow(&said);
    }
    orders(daemon);
    // And after STOP there are no new requests.
    daemon.exchange(&[Submission { kind: kind::STOP, ..Submission::default() }]);
    let (operation, length) = (operation::WRITE, 512);
    let write = Submission {
        tag: 1 << 32,
        operation,
        offset: 3 * 512,
        length,
        data_length: 512,
        ..Submission::default()
    };
    let said = daemon.exchange(&[write]);
    assert!(said.iter().all(|reply| reply.disposition == disposition::FINISH));
}

const OPTIONS: &str = "byte=90\0";

#[test]
fn rust_says_in_a_process_what_it_says_here() {
    for seed in 0..3 {
        everything(&mut thread(OPTIONS).expect("it serves"), seed, 500);
    }
}

#[test]
fn c_says_what_rust_says() {
    for seed in 0..3 {
        everything(&mut process(in_c("exercise"), OPTIONS).expect("it serves"), seed, 500);
    }
}

#[test]
fn python_says_what_rust_says() {
    everything(&mut process(in_python(), OPTIONS).expect("it serves"), 0, 300);
}

#[test]
fn all_refuse_in_the_same_words() {
    for options in ["", "byte=1\0strange=2\0", "other=1\0"] {
        let refusals = [
            thread(options).err(),
            process(in_c("refusing"), options).err(),
            process(in_python(), options).err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.as_deref(), Some("exercise has one option, byte"), "{options:?}");
        }
    }
}
