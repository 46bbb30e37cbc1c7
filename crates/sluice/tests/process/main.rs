//! The binary as users run it: the daemon as a process, the tool beside it, hosts on its drives.

mod absent;
mod attack;
mod balance;
mod chaos;
mod check;
mod classifier;
mod cli;
mod comings;
mod commands;
mod common;
mod counted;
mod crowding;
mod cuts;
mod daemon;
mod deallocation;
mod descriptors;
mod docs;
mod edges;
mod elsewhere;
mod encrypt;
mod events;
mod examples;
mod format;
mod function;
mod groups;
mod guests;
mod hanging;
mod history;
mod holder;
mod host_jobs;
mod hostile;
mod idle;
mod jobs;
mod late;
mod latency;
mod lease;
mod limits;
mod load;
mod machine;
mod management;
mod many;
mod members;
mod moves;
mod names;
mod neighbour;
mod numbered;
mod nvme;
mod orders;
mod outlived;
mod ownpower;
mod page;
mod paths;
#[path = "../../../frontend-vfio-user/tests/rig/peer.rs"]
#[allow(dead_code, reason = "its own tests use all of it")]
mod peer;
mod power;
mod programs;
mod reference;
mod remote;
mod replacement;
mod replicate;
mod said;
mod sanitize;
mod sdk;
mod service;
mod shared;
mod snapshot;
mod stalls;
mod storage;
mod strangers;
mod strangers_tls;
mod targets;
#[path = "../../../frontend-tcp/tests/tcp/host.rs"]
#[allow(dead_code, reason = "its own tests use all of it")]
mod tcp_host;
mod thrift;
mod travel;
#[path = "../../../frontend-tcp/tests/tcp/tunnel.rs"]
mod tunnel;
mod tutorial;
mod upgrade;
mod vmm;
#[allow(dead_code, reason = "tests of power use all of it in time")]
mod volatile;
mod ways;
mod wire;
