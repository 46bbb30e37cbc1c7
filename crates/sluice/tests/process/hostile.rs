//! Malicious functions, as real processes of a real daemon, and the limits of a confined one.
//!
//! The processes are this test program again. Each role is an ignored test that only such a process runs.

use crate::common::{Daemon, namespace, wait_for};
use crate::function::{Verified, drive, functions};
use rustix::process::{Pid, Signal, getppid, kill_process};
use sluice_functions::Random;
use sluice_nvme::Status;
use sluice_uif::abi::disposition::READY;
use sluice_uif::abi::{Reply, Submission};
use sluice_uif::handshake::{Served, accept};
use sluice_uif::{Answer, Call, Function, Interest, Io, Operation, Properties, sandbox};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time that each function is let loose.
const WHILE: Duration = Duration::from_secs(3);

/// Lifetime of a function whose daemon was killed, so that no one ends it.
const LIFE: Duration = Duration::from_secs(60);

/// Returns the command that runs this program in a role.
pub(crate) fn be(what: &str) -> [String; 5] {
    let this = std::env::current_exe().expect("it runs").display().to_string();
    [this, format!("hostile::{what}"), "--exact".into(), "--ignored".into(), "--nocapture".into()]
}

/// A function that requests every command.
struct Curious;

impl Function for Curious {
    fn properties(&self) -> Properties {
        let all = [Operation::Read, Operation::Write, Operation::Flush];
        let properties = Properties { pool: 1 << 20, ..Properties::NONE };
        all.into_iter().fold(properties, |properties, operation| properties.with(operation, Interest::Before))
    }

    fn submit(&mut self, _: &mut Call<'_>, _: &mut Io<'_>) -> Answer {
        Answer::Forward
    }
}

fn connected() -> Served {
    let socket = std::io::stdin();
    accept(socket.as_fd(), &mut |_| Ok(Box::new(Curious))).expect("a daemon").0
}

fn ring(served: &Served) {
    let _ = rustix::io::write(&served.bell, &1u64.to_ne_bytes());
}

#[test]
#[ignore = "is the process of a function: writes anything anywhere"]
fn scribbler() {
    let served = connected();
    let mut random = Random::new(std::process::id().into());
    let words = served.rings.region().len() as u64 / 8;
    let born = Instant::now();
    while born.elapsed() < LIFE {
        for _ in 0..random.below(200) {
            let at = random.below(words) as usize * 8;
            let value = match random.below(4) {
                0 => random.below(600),
                1 => u64::MAX,
                _ => random.next_u64(),
            };
            served.rings.region().atomic_u64(at).store(value, Relaxed);
        }
        ring(&served);
        std::thread::sleep(Duration::from_micros(random.below(300)));
    }
}

#[test]
#[ignore = "is the process of a function: answers for others, twice, late, and asks for everything"]
fn liar() {
    let served = connected();
    let (mut replies, mut requests) = served.rings.function();
    let mut random = Random::new(std::process::id().into());
    let mut seen = Vec::new();
    replies.push(&Reply { disposition: READY, ..Reply::default() });
    let born = Instant::now();
    while born.elapsed() < LIFE {
        for _ in 0..requests.waiting().unwrap_or(0) {
            let entry: Submission = requests.take();
            seen.push(entry.tag);
        }
        for _ in 0..random.below(8).min(replies.room().into()) {
            let tag = match random.below(4) {
                0 => random.next_u64(),
                1 => random.below(40) | random.below(40) << 32,
                _ => seen.get(random.below(seen.len().max(1) as u64) as usize).copied().unwrap_or(0),
            };
            let far = if random.below(50) == 0 { random.next_u64() } else { 0 };
            replies.push(&Reply {
                tag,
                disposition: random.below(7) as u8,
                operation: random.below(6) as u8,
                layer: random.below(3) as u8,
                status: random.below(1 << 16) as u16,
                offset: random.below(1 << 16) << 9 | far,
                length: random.below(300) << 9,
                data_offset: random.below(1 << 14) << 9,
                ..Reply::default()
            });
        }
        seen.truncate(1000);
        if replies.publish() {
            ring(&served);
        }
        std::thread::sleep(Duration::from_micros(random.below(200)));
    }
}

#[test]
#[ignore = "is the process of a function: says that it is ready, and nothing more"]
fn mute() {
    let served = connected();
    let (mut replies, _) = served.rings.function();
    replies.push(&Reply { disposition: READY, ..Reply::default() });
    let _ = replies.publish();
    ring(&served);
    std::thread::sleep(LIFE);
}

#[test]
#[ignore = "is the process of a function: reaches for what it was not given"]
fn thief() {
    let parent = getppid().expect("a daemon").as_raw_nonzero();
    let open = |path: String| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let mut got = Vec::new();
    if open(format!("/proc/{parent}/mem")) {
        got.push("its memory".to_owned());
    }
    // Only descriptors of a daemon's kinds count: the process that started the daemon may have left it
    // others.
    let is_its = |fd: &i32| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let link = link.display().to_string();
        ["/memfd:sluice", "anon_inode:[eventfd]", "anon_inode:[io_uring]"]
            .iter()
            .any(|its| link.starts_with(its))
    };
    got.extend((3..256).filter(is_its).map(|fd| format!("descriptor {fd}")));
    got.extend((0..256).filter(|fd| open(format!("/proc/{parent}/fd/{fd}"))).map(|fd| format!("file {fd}")));
    let refuse = format!("it got hold of [{}]", got.join(", "));
    let socket = std::io::stdin();
    let _ = accept(socket.as_fd(), &mut |_| Err(refuse.clone()));
}

/// Prefix of findings that the test's functions write to standard error.
const FOUND: &str = "found: ";

/// Returns the value of `key` in a file of this process in /proc.
fn of_itself(file: &str, key: &str) -> String {
    said_of("self", file, key)
}

/// Returns the value of `key` in a file of a process in /proc.
fn said_of(process: &str, file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).expect("it is mounted");
    let line = text.lines().find(|line| line.starts_with(key)).expect("this kernel has it");
    line[key.len()..].split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether a process has CAP_SETPCAP.
fn may_set_capabilities(process: i32) -> bool {
    let effective = said_of(&process.to_string(), "status", "CapEff:");
    u64::from_str_radix(&effective, 16).expect("a number") & 1 << 8 != 0
}

/// Returns whether the daemon's API in this folder answers a caller like this one.
fn may_call(folder: &str) -> bool {
    let Ok(mut api) = std::os::unix::net::UnixStream::connect(format!("{folder}/api.sock")) else {
        return false;
    };
    let mut answer = String::new();
    api.write_all(b"GET /v1/drives HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\r\n").is_ok()
        && api.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

/// Returns the resources of the daemon and of its folder that a process with the daemon's user can reach.
fn reached(folder: &str, daemon: i32) -> Vec<&'static str> {
    let reads = |path: String| std::fs::File::open(path).and_then(|mut file| file.read(&mut [0])).is_ok();
    let tries = [
        ("the API", may_call(folder)),
        ("the state", reads(format!("{folder}/state/lock"))),
        ("the list of sockets", std::fs::read_dir(format!("{folder}/drives")).is_ok()),
        ("memory", reads(format!("/proc/{daemon}/mem")) || reads(format!("/proc/{daemon}/maps"))),
        ("the daemon's environment", reads(format!("/proc/{daemon}/environ"))),
        ("descriptors", (0..64).any(|fd| std::fs::read_link(format!("/proc/{daemon}/fd/{fd}")).is_ok())),
    ];
    tries.into_iter().filter(|(_, got)| *got).map(|(what, _)| what).collect()
}

#[test]
#[ignore = "is the process of a function: uses all that it has"]
fn burglar() {
    let mut folder = String::new();
    let socket = std::io::stdin();
    let (served, _) = accept(socket.as_fd(), &mut |options| {
        folder = options.get("folder").expect("it was told").to_owned();
        Ok(Box::new(Curious))
    })
    .expect("a daemon");
    let daemon = getppid().expect("a daemon").as_raw_nonzero().get();
    let mut found = reached(&folder, daemon);
    let mut note = |what: &'static str, got: bool| found.extend(got.then_some(what));
    note("a variable", std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    note("larger rings", rustix::fs::ftruncate(served.rings.region().fd(), 1 << 30).is_ok());
    note("a larger arena", rustix::fs::ftruncate(served.arena.fd(), 1 << 30).is_ok());
    note("new privileges", of_itself("status", "NoNewPrivs:") != "1");
    let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"];
    // Only a daemon that has CAP_SETPCAP can empty CapBnd. Without new privileges, CapBnd gives no capability
    // to others.
    let emptied = sets.iter().filter(|set| may_set_capabilities(daemon) || **set != "CapBnd:");
    note("capabilities", emptied.into_iter().any(|set| of_itself("status", set) != "0000000000000000"));
    note("memory without end", of_itself("limits", "Max address space").contains("unlimited"));
    note("a core", of_itself("limits", "Max core file size") != "0 0 bytes");
    note(
        "a thousand files",
        (0..1000).map(|_| std::fs::File::open("/dev/null")).collect::<Result<Vec<_>, _>>().is_ok(),
    );
    eprintln!("\r\x1b[2K2026-01-01T00:00:00.000000Z ERROR forged\n2026-01-01T00:00:00.000000Z ERROR forged");
    eprintln!("{FOUND}{found:?}");
    // A process that the function starts has no more rights.
    let [this, words @ ..] = be("accomplice");
    let mut accomplice = Command::new(this);
    let _ = accomplice.args(words).env("FOLDER", &folder).process_group(0).status();
    std::thread::sleep(LIFE);
}

#[test]
#[ignore = "is a process that a function starts: calls the API"]
fn accomplice() {
    let folder = std::env::var("FOLDER").expect("it was told");
    let found = if may_call(&folder) { vec!["the API"] } else { Vec::new() };
    eprintln!("{FOUND}{found:?} by an accomplice");
}

/// Checks a function with the daemon's own user, which still cannot act as the daemon.
#[test]
fn a_function_with_the_daemons_user_is_not_the_daemon() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let folder = daemon.folder.path().display().to_string();
    daemon.declare("", &hostile("burglar", &format!(", options = {{ folder = \"{folder}\" }}")));
    daemon.restart();
    wait_for("the findings", || daemon.log().matches(FOUND).count() >= 2);
    let log = daemon.log();
    for line in log.lines().filter(|line| line.contains(FOUND)) {
        assert!(line.contains(&format!("{FOUND}[]")), "{line}");
    }
    let forged: Vec<_> = log.lines().filter(|line| line.contains("ERROR forged")).collect();
    assert_eq!(forged.len(), 2, "{log}");
    assert!(forged.iter().all(|line| line.contains("a function's standard error: ")), "{log}");
    assert!(!log.contains("[2K2026") || !log.contains('\r'), "{log}");
}

/// Last words of [`talker`].
const LAST: &str = "the last of it";

#[test]
#[ignore = "is the process of a function: writes more than a pipe holds before it answers, and much at its end"]
fn talker() {
    // Empty lines are not logged. The log limit would leave out other lines.
    let mut words = std::io::stderr();
    words.write_all(&[b'\n'; 200 << 10]).expect("the daemon reads");
    let _served = connected();
    words.write_all(&[&[b'\n'; 40 << 10], LAST.as_bytes()].concat()).expect("the daemon reads");
    std::process::exit(0);
}

#[test]
fn all_that_a_function_writes_to_standard_error_is_read() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &hostile("talker", ""));
    daemon.restart();
    wait_for("the last words", || daemon.log().contains(LAST));
}

/// Checks that a debugger of the daemon's user is let in only if the operator allows it.
#[test]
fn the_daemon_is_hidden_unless_it_is_to_be_debugged() {
    let mut daemon = Daemon::start("");
    let owner = |daemon: &Daemon| {
        let of_its = std::fs::metadata(format!("/proc/{}/mem", daemon.pid())).expect("it runs");
        (of_its.uid(), rustix::process::getuid().as_raw())
    };
    if !rustix::process::getuid().is_root() {
        assert_eq!(owner(&daemon).0, 0, "the kernel gives files of a hidden process to root");
    }
    daemon.ok(&["drive", "list"]);
    daemon.stop();
    daemon.declare("dumpable = true", "");
    daemon.restart();
    let (of_its, own) = owner(&daemon);
    assert_eq!(of_its, own);
}

pub(crate) fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

fn hostile(what: &str, more: &str) -> String {
    let function = format!("{{ kind = \"uif\", command = [{}]{more} }}", quoted(&be(what)));
    drive(what, "target = \"memory\"", &function)
}

#[test]
fn functions_that_mean_harm_harm_nobody_but_their_own_drive() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let quick = ", on_death = \"fail\", deadline_ms = 300";
    let drives = ["scribbler", "liar", "mute"].map(|what| hostile(what, quick)).concat();
    daemon.declare("", &(drives + &drive("other", "target = \"memory\"", "")));
    daemon.restart();
    let mut host = daemon.host("other");
    let mut verified = Verified::new(namespace(&mut host, 1));
    let loose = Instant::now();
    let neighbour = std::thread::spawn(move || {
        while loose.elapsed() < WHILE {
            verified.work(50).expect("every command succeeds");
        }
        verified
    });
    // Drives with a malicious function complete each command, with any status.
    let victims = ["scribbler", "liar", "mute"].map(|what| {
        let mut host = daemon.host(what);
        std::thread::spawn(move || {
            let mut disk = namespace(&mut host, 1);
            let mut failed = 0u32;
            for round in 0u64.. {
                if loose.elapsed() >= WHILE {
                    break;
                }
                failed += u32::from(disk.write(round % 1000, &[1; 4096]).is_err());
                failed += u32::from(disk.read(round % 1000, &mut [0; 512]).is_err());
            }
            failed
        })
    });
    let failed = victims.map(|victim| victim.join().expect("every command comes back"));
    assert!(failed[2] > 0, "nobody answers there");
    neighbour.join().expect("every command succeeds").all_is_well();
    let count = |what: &str, counter: &str| functions(&daemon, what)[counter].as_u64().unwrap_or(0);
    assert!(count("liar", "stray") + count("liar", "invalid") > 0);
    assert!(count("scribbler", "stray") + count("scribbler", "invalid") + count("scribbler", "deaths") > 0);
    assert!(count("mute", "timeouts") > 0 && count("other", "deaths") == 0);
}

/// Checks a function with another user than the daemon's, as an untrusted function should have.
#[test]
fn a_function_gets_hold_of_nothing_that_it_was_not_given() {
    if !rustix::process::getuid().is_root() {
        return eprintln!("not tested: only root can give a function a user of its own");
    }
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &hostile("thief", ", uid = 65534, gid = 65534"));
    daemon.restart();
    let shown = daemon.ok(&["drive", "show", "thief"]);
    assert!(shown.contains("it says: it got hold of []"), "{shown}");
}

#[test]
fn a_process_that_is_killed_fails_its_commands_and_nothing_after_it_is_back() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let function = "{ kind = \"uif\", function = \"pass\", on_death = \"fail\" }";
    daemon.declare("", &drive("disk", "target = \"memory\"", function));
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for times in 1..=5 {
        let pid = functions(&daemon, "disk")["pid"].as_i64().expect("it is there") as i32;
        // The process is stopped first, so that it has the command when it dies.
        let pid = Pid::from_raw(pid).expect("it is there");
        kill_process(pid, Signal::STOP).expect("it is ours");
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            kill_process(pid, Signal::KILL).expect("it is ours");
        });
        let error = disk.write(0, &[1; 512]).expect_err("nobody answers");
        assert!(error.status().is_some_and(|status| status.same_code(Status::INTERNAL_ERROR)), "{error}");
        killer.join().expect("it is ours");
        wait_for("the next one", || functions(&daemon, "disk")["ready"] == true);
        disk.write(0, &[2; 512]).expect("it is back");
        assert_eq!(functions(&daemon, "disk")["deaths"], times);
    }
}

/// Attempts of a confined process, by number.
const TRIES: [fn() -> bool; 7] = [
    || std::fs::File::open("/etc/passwd").is_ok(),
    || std::fs::write("/tmp/confined", "x").is_ok(),
    || std::net::TcpStream::connect("127.0.0.1:9").is_ok(),
    || std::os::unix::net::UnixStream::connect("/nowhere").is_ok(),
    || Command::new("/bin/true").status().is_ok(),
    || kill_process(getppid().expect("a test"), Signal::CONT).is_ok(),
    || std::env::set_current_dir("/").is_ok(),
];

#[test]
#[ignore = "is a process that confines itself and tries to get out"]
fn confined() {
    let number: usize = std::env::var("SLUICE_TEST_TRY").expect("a number").parse().expect("a number");
    let (start, started) = std::sync::mpsc::channel();
    let is_earlier = std::env::var("SLUICE_TEST_EARLIER").is_ok();
    let earlier = is_earlier.then(|| std::thread::spawn(move || started.recv().is_ok() && TRIES[number]()));
    sandbox::confine(&[], std::env::var("SLUICE_TEST_MANY").is_ok()).expect("this kernel can");
    let got_out = match earlier {
        None => TRIES[number](),
        Some(earlier) => start.send(()).is_ok() && earlier.join().unwrap_or(true),
    };
    // Exiting here leaves out the end of a test, which needs more rights than a function.
    std::process::exit(if got_out { 42 } else { 0 });
}

#[test]
fn who_is_confined_cannot_open_connect_start_or_signal() {
    let [this, arguments @ ..] = be("confined");
    for number in 0..TRIES.len() {
        // In the third case, a thread makes the attempt that existed before the confinement.
        for (many, earlier) in [(false, false), (true, false), (false, true)] {
            let mut child = Command::new(&this);
            if earlier {
                child.env("SLUICE_TEST_EARLIER", "1");
            }
            child.args(&arguments).env("SLUICE_TEST_TRY", number.to_string());
            if many {
                child.env("SLUICE_TEST_MANY", "1");
            }
            let ended = child.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
            let killed = ended.signal() == Some(Signal::SYS.as_raw());
            // A process that serves many drives may call `open`, and Landlock refuses it.
            let refused = many && number < 2 && ended.code() == Some(0);
            assert!(killed || refused, "try {number}: {ended}");
        }
    }
}
