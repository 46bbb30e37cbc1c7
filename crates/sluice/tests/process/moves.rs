//! Functions that move, come and go while commands are in flight: none of those is lost, done twice or done wrong.

use crate::common::{Daemon, namespace};
use crate::function::{Verified, functions};
use crate::load::under_load;
use sluice::api::{FunctionList, MoveRequest};
use sluice::client::Client;
use sluice::drives::FunctionView;
use sluice::spec::Place;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Of each of the two functions.
const MOVES: usize = 500;

/// A drive whose commands are in flight for a while, with this function, given as the configuration has it.
fn drive(function: &str) -> String {
    format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n\
         functions = [ {function} {{ kind = \"delay\", read_us = 300, write_us = 200 }} ]\n"
    )
}

/// The function `encrypt`, with a key in this folder.
fn encrypt(folder: &Path) -> String {
    let key = folder.join("key");
    std::fs::write(&key, (0..64).collect::<Vec<u8>>()).expect("room on the disk");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let key = key.display();
    format!("{{ kind = \"uif\", function = \"encrypt\", options = {{ key_file = \"{key}\" }} }},")
}

async fn move_to(client: &Client, place: Place) -> FunctionView {
    let (path, request) = ("/v1/drives/demo/functions/1/move", MoveRequest { place });
    let moved = client.post::<FunctionList>(path, &request).await.expect("it moves").functions;
    let [function] = moved.try_into().expect("the drive has one");
    function
}

/// Moves the drive's function to and fro, and sees that it was shown every command once.
fn moves_under_load(daemon: &Daemon) {
    let client = Client::new(daemon.api());
    let load = under_load(daemon, || async {
        for number in 0..MOVES {
            let place = if number % 2 == 0 { Place::Daemon } else { Place::Process };
            let function = move_to(&client, place).await;
            assert_eq!(
                (function.up, function.pid.is_some()),
                (true, place == Place::Process),
                "{function:?}"
            );
        }
    });
    let function = functions(daemon, "demo");
    let counted = ["sent", "replies", "deaths", "failed", "stray", "invalid", "timeouts"]
        .map(|what| function[what].as_u64().expect("a number"));
    assert_eq!(counted, [load.submitted, load.submitted, MOVES as u64, 0, 0, 0, 0]);
}

#[test]
fn a_function_that_moves_to_and_fro_under_load_is_shown_every_command_once() {
    let daemon = Daemon::start(&drive("{ kind = \"uif\", function = \"pass\" },"));
    moves_under_load(&daemon);
}

#[test]
fn a_key_moves_with_its_function_and_every_block_is_what_it_was() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive(&encrypt(daemon.folder.path())));
    daemon.restart();
    moves_under_load(&daemon);
}

/// It stays where it was moved to, until the configuration has a newer word.
#[test]
fn a_move_is_remembered_and_one_that_cannot_be_is_refused() {
    let configuration = drive("{ kind = \"uif\", function = \"pass\" },");
    let mut daemon = Daemon::start(&configuration);
    let moved = daemon.ok(&["function", "move", "demo", "daemon"]);
    assert!(moved.lines().count() == 2 && moved.contains("pass"), "{moved}");
    let said = daemon.fails(&["function", "move", "demo", "daemon", "--function", "pass"]);
    assert!(said.contains("the function pass of drive `demo` is in the daemon"), "{said}");
    let said = daemon.fails(&["function", "move", "demo", "daemon", "--function", "2"]);
    assert!(said.contains("has no such function"), "{said}");
    daemon.ok(&["reload"]);
    assert!(functions(&daemon, "demo")["pid"].is_null(), "the configuration says what it said");
    daemon.crash();
    daemon.restart();
    assert!(functions(&daemon, "demo")["pid"].is_null(), "it was moved");
    let mut host = daemon.host("demo");
    let mut verified = Verified::new(namespace(&mut host, 1));
    verified.all_is_well();
    drop((verified, host));
    daemon.stop();
    daemon.declare("", &configuration.replace("\"pass\"", "\"pass\", deadline_ms = 4000"));
    daemon.restart();
    assert!(functions(&daemon, "demo")["pid"].is_u64(), "the configuration has a newer word");
}
