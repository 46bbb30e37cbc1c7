//! Discovery service: a controller for each host that reads the Discovery log page (Base 3.1.2.3).

mod session;

pub(crate) use session::{Context, End, Session};
