//! Power cuts of the machine whose daemon serves a drive with functions, all of whose devices lose unsynced data.
//!
//! A write that was acknowledged with FUA, or flushed, is there after the next start, as [without
//! functions](crate::fua).

use crate::blackout::Machine;
use crate::common::LIMIT;
use crate::volatile::Disk;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const SIZE: usize = 4 * MIB;
const CUTS: u32 = 5;

/// Drive with one function over disks.
#[derive(Clone, Copy, Debug)]
struct Stack {
    function: &'static str,
    /// Bytes of each disk, the first layer's first.
    disks: &'static [usize],
    options: &'static str,
    /// Bytes of a block.
    block: u64,
}

const PLAIN: Stack = Stack { function: "", disks: &[SIZE, SIZE], options: "", block: 512 };

fn target(disk: &Disk) -> String {
    format!("target = \"file\", path = \"{}\"", disk.path().display())
}

fn drive(stack: Stack, disks: &[&Disk]) -> String {
    let Stack { function, options, block, .. } = stack;
    if function == "thin" {
        return format!(
            "[[shared]]\nname = \"pool\"\ntype = \"thin\"\npath = \"{}\"\nsize = \"8MiB\"\n\
             [[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"thin\"\nshared = \"pool\"\nvolume = \"v\"\n\
             size = \"1GiB\"\n",
            disks[0].path().display()
        );
    }
    let kind = match function {
        "stripe" | "concat" => format!("kind = \"{function}\""),
        _ => format!(
            "kind = \"uif\", function = \"{function}\", place = \"daemon\", options = {{ {options} }}"
        ),
    };
    let layers: Vec<String> = disks[1..].iter().map(|disk| format!("{{ {} }}", target(disk))).collect();
    let layers =
        if layers.is_empty() { String::new() } else { format!(", layers = [ {} ]", layers.join(", ")) };
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\n{}\nblock_size = {block}\nfunctions = [ {{ {kind}{layers} }} ]\n",
        target(disks[0]).replace(", ", "\n"),
    )
}

/// Connects the host as soon as the function serves.
fn connect(machine: &mut Machine<'_>) {
    let start = Instant::now();
    loop {
        let shown = machine.daemon.ok(&["drive", "show", "disk"]);
        if shown.contains("state:     ready") {
            break;
        }
        assert!(start.elapsed() < LIMIT, "{shown}\n{}", machine.daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    machine.connect();
}

/// Flushes until that succeeds: a Flush may report a loss first. Then everything is read and checked.
fn settle(machine: &mut Machine<'_>) {
    let start = Instant::now();
    while machine.load.flush().is_err() {
        assert!(start.elapsed() < LIMIT, "no Flush succeeds: {}", machine.daemon.log());
    }
    machine.settle();
}

fn survives(stack: Stack, is_through: bool) {
    let disks: Vec<Disk> = stack.disks.iter().filter_map(|bytes| Disk::with_holes(*bytes)).collect();
    let disks: Vec<&Disk> = disks.iter().collect();
    if disks.len() < stack.disks.len() {
        return;
    }
    let mut machine = Machine::start(&disks, &drive(stack, &disks), 21);
    (machine.load.is_through, machine.load.zeroes, machine.load.block) = (is_through, 20, stack.block);
    connect(&mut machine);
    settle(&mut machine);
    for _ in 0..CUTS {
        machine.work(120);
        machine.cut();
        connect(&mut machine);
        settle(&mut machine);
    }
    let load = &machine.load;
    println!("{} {is_through}: {} lost, {:?}", stack.function, load.lost, load.failures);
    assert!(load.lost == 0 || !is_through, "without a write cache nothing is lost");
    assert_eq!(load.failures.others, 0, "{}", machine.daemon.log());
}

fn both(stack: Stack) {
    survives(stack, false);
    survives(stack, true);
}

#[test]
fn durable_writes_survive_power_cuts_of_sets() {
    let set = Stack { disks: &[SIZE, SIZE, SIZE], ..PLAIN };
    both(Stack { function: "mirror", ..set });
    both(Stack { function: "replicate", ..set });
}

#[test]
fn durable_writes_survive_power_cuts_of_an_array() {
    both(Stack { function: "parity", disks: &[SIZE, SIZE, SIZE, SIZE], ..PLAIN });
}

#[test]
fn durable_writes_survive_power_cuts_of_stripes_and_parts() {
    both(Stack { function: "stripe", ..PLAIN });
    both(Stack { function: "concat", disks: &[2 * MIB, SIZE], ..PLAIN });
}

#[test]
fn durable_writes_survive_power_cuts_below_atomic_and_checksum() {
    both(Stack { function: "atomic", disks: &[SIZE, 2 * MIB], options: "limit = \"64KiB\"", ..PLAIN });
    both(Stack { function: "checksum", disks: &[2 * SIZE], block: 4096, ..PLAIN });
}

#[test]
fn durable_writes_survive_power_cuts_of_a_thin_pool() {
    both(Stack { function: "thin", disks: &[8 * MIB], ..PLAIN });
}

#[test]
fn durable_writes_survive_power_cuts_of_a_store() {
    both(Stack { function: "snapshot", disks: &[16 * MIB], options: "size = \"4MiB\"", ..PLAIN });
}
