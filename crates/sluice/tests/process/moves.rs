//! Functions that are moved, attached and detached with commands in flight. No command is lost, done twice or
//! done wrong.

use crate::common::{Daemon, namespace, tool, wait_for};
use crate::function::{Verified, functions};
use crate::load::under_load;
use sluice_api::client::Client;
use sluice_api::{AttachRequest, FunctionList, MoveRequest};
use sluice_control::drives::FunctionView;
use sluice_spec::{Place, UifSpec};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Number of moves of each of the two functions.
const MOVES: usize = 500;
/// Number of functions that are attached and detached.
const ROUNDS: usize = 90;
/// Lowest number of commands that each of them sees.
const SEEN: u64 = 20;

const FUNCTIONS: &str = "/v1/drives/demo/functions";
const PASS: &str = "{ kind = \"uif\", function = \"pass\" },";

/// Returns a drive whose commands are in flight for a while, with this function, given as the configuration
/// has it.
fn drive(function: &str) -> String {
    drive_on("target = \"memory\"", function)
}

fn drive_on(target: &str, function: &str) -> String {
    format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\n{target}\nsize = \"16MiB\"\n\
         functions = [ {function} {{ kind = \"delay\", read_us = 300, write_us = 200 }} ]\n"
    )
}

/// Returns the function `encrypt`, with a key in this folder.
fn encrypt(folder: &Path) -> String {
    let key = folder.join("key");
    std::fs::write(&key, (0..64).collect::<Vec<u8>>()).expect("room on the disk");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let key = key.display();
    format!("{{ kind = \"uif\", function = \"encrypt\", options = {{ key_file = \"{key}\" }} }},")
}

async fn move_to(client: &Client, place: Place) -> FunctionView {
    let (path, request) = (format!("{FUNCTIONS}/1/move"), MoveRequest { place });
    let moved = client.post::<FunctionList>(&path, &request).await.expect("it moves").functions;
    let [function] = moved.try_into().expect("the drive has one");
    function
}

/// Moves the drive's function to and fro, and checks that it got every command once.
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
    let daemon = Daemon::start(&drive(PASS));
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

/// Checks that a function stays in its new place until the configuration changes.
#[test]
fn a_move_is_remembered_and_one_that_cannot_be_is_refused() {
    let configuration = drive(PASS);
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

/// Checks a detach that cannot be stored. The function stays attached, and the drive waits for it if its
/// process cannot be started again at once.
#[test]
fn one_that_stays_and_cannot_be_back_is_waited_for() {
    for place in ["process", "daemon"] {
        let mut daemon = Daemon::start("");
        daemon.stop();
        let function = encrypt(daemon.folder.path()).replace(" }}", &format!(" }}, place = \"{place}\" }}"));
        daemon.declare("", &drive(&function));
        daemon.restart();
        let mut host = daemon.host("demo");
        let mut verified = Verified::new(namespace(&mut host, 1));
        let [key, away, in_its_place] =
            ["key", "key.away", "state/drives.state.new"].map(|name| daemon.folder.path().join(name));
        std::fs::create_dir(&in_its_place).expect("room on the disk");
        std::fs::rename(&key, &away).expect("it is ours");
        let said = daemon.fails(&["function", "detach", "demo"]);
        let why =
            ["the function encrypt cannot be detached: cannot store the state in DIR/state", "not back"];
        assert!(why.iter().all(|why| said.contains(why)) && said.contains("tried again"), "{said}");
        std::fs::rename(&away, &key).expect("it is ours");
        verified.all_is_well();
        std::fs::remove_dir(&in_its_place).expect("it is ours");
        let done = daemon.ok(&["function", "detach", "demo"]);
        assert!(done.contains("does not have the function any more"), "{done}");
    }
}

/// Checks each position: above the function that stays, between it and the slow layer, and below all.
#[test]
fn functions_that_come_and_go_under_load_lose_nothing() {
    let daemon = Daemon::start(&drive(PASS));
    let client = Client::new(daemon.api());
    let load = under_load(&daemon, || async {
        for round in 0..ROUNDS {
            let (place, below) = (if round % 2 == 0 { Place::Daemon } else { Place::Process }, round % 3);
            let function = UifSpec { function: Some("pass".to_owned()), place, ..UifSpec::default() };
            let request = AttachRequest { function, nsid: 1, below };
            client.post::<FunctionList>(FUNCTIONS, &request).await.expect("it is attached");
            let number = if below == 0 { 1 } else { 2 };
            let sees = async || {
                let list = client.get::<FunctionList>(FUNCTIONS).await.expect("the drive is there");
                assert_eq!((list.functions.len(), list.functions[number - 1].failed), (2, 0));
                list.functions[number - 1].sent
            };
            while sees().await < SEEN {}
            client.delete(&format!("{FUNCTIONS}/{number}")).await.expect("it is detached");
        }
    });
    let stayed = functions(&daemon, "demo");
    let counted = ["sent", "replies", "deaths"].map(|what| stayed[what].as_u64().expect("a number"));
    assert_eq!(counted, [load.submitted, load.submitted, 0], "what the others let by came once");
}

/// Checks that a drive in use is copied without an effect on its host.
#[test]
fn a_copy_is_made_by_a_function_that_is_attached_for_it() {
    let daemon = Daemon::start(&drive_on("target = \"file\"\npath = \"image.img\"", ""));
    let folder = daemon.folder.path();
    let spec = folder.join("copy.toml");
    let layers = "{ target = \"file\", path = \"copy.img\", size = \"16MiB\" }, { target = \"file\", path = \"copy.log\", size = \"1MiB\" }";
    std::fs::write(&spec, format!("kind = \"uif\"\nfunction = \"replicate\"\nlayers = [ {layers} ]\n"))
        .expect("room on the disk");
    let is_equal = || {
        let [image, copy] = ["image.img", "copy.img"].map(|name| std::fs::read(folder.join(name)));
        image.expect("it is there") == copy.expect("it is there")
    };
    // The second round has the log of the first, which lacks the writes in between.
    for _ in 0..2 {
        under_load(&daemon, || async {
            daemon.ok(&["function", "attach", "demo", "--spec", spec.to_str().expect("text")]);
            let status = || daemon.ok(&["function", "tell", "demo", "status"]);
            wait_for("the copy", || status().contains(r#""state":"in sync""#));
        });
        daemon.ok(&["function", "detach", "demo"]);
        assert!(is_equal());
        let mut host = daemon.host("demo");
        Verified::new(namespace(&mut host, 1)).all_is_well();
        assert!(!is_equal(), "it is not written any more");
    }
    // No drive uses the copy's files any more.
    daemon.ok(&["drive", "create", "copy", "--file", folder.join("copy.img").to_str().expect("text")]);
}

#[test]
fn a_function_that_cannot_be_there_is_refused_in_words_and_nothing_changes() {
    let daemon = Daemon::start(&drive(PASS));
    let refused = |words: &[&str], why: &str| {
        let said = daemon.fails(&[&["function", "attach", "demo"], words].concat());
        assert!(said.contains(why), "{words:?}: {said}");
        let list = daemon.ok(&["function", "show", "demo"]);
        assert_eq!(list.lines().count(), 2, "{list}");
    };
    refused(&["pss"], "did you mean `pass`?");
    refused(&["pass", "--below", "3"], "has 2 functions");
    refused(&["pass", "--namespace", "2"], "has no namespace 2");
    refused(&["pass", "--option", "a=b"], "pass has no options, and so no `a`");
    refused(&["encrypt", "--option", "key_file=/not/there"], "/not/there");
    // The function is refused also with the drive's own size, since the host's data would be gone.
    for size in ["size=8MiB", "size=16MiB"] {
        refused(&["snapshot", "--option", size], "keeps blocks in places of its own");
    }
    refused(&["--command", "/bin/false"], "it ended without an answer");
    refused(&["replicate"], "cannot start");
    let said = daemon.fails(&["function", "detach", "demo", "--function", "2"]);
    assert!(said.contains("has no such function"), "{said}");
    let mut host = daemon.host("demo");
    Verified::new(namespace(&mut host, 1)).all_is_well();
}

/// Checks a detach beside the rest of a function that could not be attached. The rest is not taken for
/// another function.
#[test]
fn a_function_is_detached_beside_what_is_left_of_another() {
    let daemon = Daemon::start(&drive(PASS));
    let spec = daemon.folder.path().join("copy.toml");
    // The drive gives up before the function has read its log.
    let slow = "functions = [ { kind = \"delay\", read_us = 15000000 } ]";
    let layers = format!(
        "{{ target = \"memory\", size = \"16MiB\" }}, {{ target = \"memory\", size = \"1MiB\", {slow} }}"
    );
    std::fs::write(&spec, format!("kind = \"uif\"\nfunction = \"replicate\"\nlayers = [ {layers} ]\n"))
        .expect("room on the disk");
    let said = daemon.fails(&["function", "attach", "demo", "--spec", spec.to_str().expect("text")]);
    assert!(said.contains("it was not ready within 5s"), "{said}");
    wait_for("the layer to go", || {
        let done = tool(&daemon.api(), &["function", "detach", "demo"]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() || said.contains("still has a layer of a function"), "{said}");
        done.status.success()
    });
    let mut host = daemon.host("demo");
    Verified::new(namespace(&mut host, 1)).all_is_well();
}
