//! What goes wrong around a proxy, row by row, and what was promised for it.
//!
//! `make chaos` runs [`the_matrix`], which prints a line for each row, `ONLY=SIGTERM make chaos` one of them. Rows that
//! take well under a second are ordinary tests as well; those that are tested elsewhere are called from here.

pub mod breaking;
mod life;
mod machine;
mod origins;

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::time::Instant;

/// What happens, what was promised for it, and what makes it happen and says what was seen.
type Row = (&'static str, &'static str, fn() -> String);

/// As a test elsewhere has it, which panics when it is not so.
macro_rules! elsewhere {
    ($test:path) => {
        || {
            $test();
            concat!("so it is: ", stringify!($test)).replace("crate::", "")
        }
    };
}

const ROWS: &[Row] = &[
    (
        "origin killed in mid-content",
        "cut for all of 3 readers, never stored",
        elsewhere!(crate::cache::what_was_cut_off_is_never_stored_and_never_looks_whole),
    ),
    ("origin resets in mid-content", "cut for all of 3 readers, then whole again", origins::resets_in_mid_content),
    (
        "origin hangs before the head",
        "504 in the route's time",
        elsewhere!(crate::stream::an_origin_that_never_answers_is_a_504_with_the_cache_and_without),
    ),
    ("the same with waiters", "the lock is let go, one retry at most", origins::hangs_before_the_head),
    (
        "origin hangs in mid-content",
        "cut in the route's time",
        elsewhere!(crate::stream::an_origin_that_stops_in_the_middle_is_cut),
    ),
    ("origin resets", "502; GET sent again twice at most, POST never", origins::resets),
    ("kept connections died", "GET sent again twice at most, POST never", origins::kept_connections_died),
    ("origin's socket file is gone", "502, and 200 when it is back", origins::socket_file_gone),
    ("one of two origins killed", "no GET fails", origins::half_of_them_killed),
    ("name does not resolve", "its last address for 60 s, then 502 at once", machine::name_gone),
    ("no descriptors left", "who is connected is served, who is not waits, no spinning", machine::no_descriptors),
    ("disk full for the log", "all served; lines lost are counted, told once", machine::disk_full),
    ("log's folder gone at SIGUSR1", "all served; opened when it is back", machine::log_folder_gone),
    (
        "log takes nothing at the end",
        "no obstacle to the end",
        elsewhere!(crate::binary::a_log_that_nobody_reads_does_not_hold_up_the_end),
    ),
    ("clock moves by an hour", "ages stay, nothing becomes fresh again", machine::clock_moves),
    ("killed under load", "serves in 5 s, on the same port", life::killed),
    ("SIGTERM under load", "no request lost, ends in time", life::terminated),
    ("SIGHUP under load", "no request fails", elsewhere!(crate::binary::hup_takes_a_new_file_over_and_drops_nothing)),
    ("twice the memory in keys", "RSS < 1.25 x memory + 64 MiB, the hot one stays", life::twice_the_memory),
    (
        "plugin panics",
        "500 for its request, counted, others go on",
        elsewhere!(crate::strangers::a_panic_costs_its_request_a_500_and_nothing_else),
    ),
];

/// What panics said since it was asked for; the plugin that panics is not to fill the screen.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn said() -> Vec<String> {
    std::mem::take(&mut SAID.lock().unwrap())
}

#[test]
#[ignore = "make chaos"]
fn the_matrix() {
    std::panic::set_hook(Box::new(|panic| SAID.lock().unwrap().push(panic.to_string().replace('\n', " "))));
    let mut failed = Vec::new();
    println!();
    let only = std::env::var("ONLY").unwrap_or_default();
    for (what, promise, happen) in ROWS.iter().filter(|(what, ..)| what.contains(&only)) {
        let since = Instant::now();
        let seen = catch_unwind(happen);
        let said = said();
        let seen = seen.unwrap_or_else(|_| {
            failed.push(*what);
            format!("FAILED: {}", said.join("; "))
        });
        println!("{what:<30} | {promise:<56} | {:>5.1} s | {seen}", since.elapsed().as_secs_f64());
    }
    let _ = std::panic::take_hook();
    assert!(failed.is_empty(), "not as promised: {failed:?}");
}

/// Rows that cost little are looked at with every other test.
macro_rules! always {
    ($($name:ident: $row:path;)*) => {
        $(#[test]
        fn $name() {
            $row();
        })*
    };
}

always! {
    a_reset_in_mid_content_is_a_cut_for_everybody: origins::resets_in_mid_content;
    a_hang_is_over_when_its_time_is: origins::hangs_before_the_head;
    a_reset_costs_no_more_than_it_must: origins::resets;
    connections_that_died_cost_no_more_than_they_must: origins::kept_connections_died;
    a_socket_file_may_go_and_come: origins::socket_file_gone;
    a_full_disk_costs_the_log_and_nothing_else: machine::disk_full;
    a_log_whose_folder_is_gone_is_opened_when_it_is_back: machine::log_folder_gone;
    a_killed_process_starts_again_at_once: life::killed;
}
