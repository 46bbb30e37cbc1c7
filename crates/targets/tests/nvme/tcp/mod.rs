//! The same over NVMe/TCP.

mod authentication;
mod fake;
mod hostile;
mod io;
mod loss;
mod multipath;
mod proxy;
mod rig;
mod tls;
