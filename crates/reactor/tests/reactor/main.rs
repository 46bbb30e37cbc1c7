//! Tests of a real reactor on a real io_uring, from outside.

mod commands;
mod files;
mod idle;
mod mail;
mod moves;
mod probe;
mod removal;
mod signals;
mod sockets;
mod watched;
