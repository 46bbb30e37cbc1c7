//! The whole `main` of a function's program.

use crate::handshake::Make;
use crate::serve::{Socket, serve};
use crate::{Failure, listen, sandbox};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "a storage function of Sluice's. The daemon starts it, with its socket as standard input.

  --socket PATH     listen there instead, for any number of drives
  --readable PATH   with --socket: a file, or a folder with all below it, that a drive's function opens
  --unconfined      keep all that a process may do";

/// Arguments of a function's program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Path to listen at; without one standard input is a daemon's socket.
    pub socket: Option<PathBuf>,
    /// Paths that the process may still open for later drives.
    pub readable: Vec<PathBuf>,
    /// Whether the process stays unconfined.
    pub unconfined: bool,
}

impl Arguments {
    /// Parses the words after the program's name.
    ///
    /// # Errors
    /// The word that is not valid, or lacks the next.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let (mut arguments, mut words) = (Self::default(), words.into_iter());
        while let Some(word) = words.next() {
            let mut path =
                || words.next().map(PathBuf::from).ok_or(format!("{} names no path", word.display()));
            match word.to_str() {
                Some("--socket") => arguments.socket = Some(path()?),
                Some("--readable") => arguments.readable.push(path()?),
                Some("--unconfined") => arguments.unconfined = true,
                _ => return Err(format!("there is no argument {}", word.display())),
            }
        }
        Ok(arguments)
    }

    /// Serves until the daemon is gone. `make` is called for each drive, with the options of its user.
    ///
    /// # Errors
    /// It cannot listen, cannot be confined, or cannot serve the daemon that started it.
    pub fn serve(&self, make: &mut Make<'_>) -> Result<(), Failure> {
        // Before it opens a key.
        sandbox::hide()?;
        let socket = match &self.socket {
            Some(path) => Socket::Listening(listen(path)?),
            None => Socket::Inherited(std::io::stdin().as_fd().try_clone_to_owned()?),
        };
        serve(socket, make, || match self.unconfined {
            true => Ok(()),
            false => sandbox::confine(&self.readable, self.socket.is_some()),
        })
    }
}

/// Runs a function's process until the daemon is gone, and writes the reason of a failure to standard error.
/// `make` makes the function of each drive from its user's options, or returns the reason why there is none.
pub fn main(make: &mut Make<'_>) -> ExitCode {
    let outcome = Arguments::parse(std::env::args_os().skip(1))
        .map_err(|why| format!("{why}\n\n{USAGE}"))
        .and_then(|it| it.serve(make).map_err(|why| format!("the function does not serve: {why}")));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_where_and_what() {
        let parse = |words: &[&str]| Arguments::parse(words.iter().map(OsString::from));
        assert_eq!(parse(&[]), Ok(Arguments::default()));
        let all = parse(&["--readable", "/keys", "--socket", "/s", "--readable", "k", "--unconfined"]);
        let readable = vec!["/keys".into(), "k".into()];
        assert_eq!(all, Ok(Arguments { socket: Some("/s".into()), readable, unconfined: true }));
        for wrong in [&["--socket"][..], &["--readable"], &["x"], &["--socket=/s"], &[""]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
