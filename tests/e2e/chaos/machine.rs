//! The machine around the process: its names, descriptors, disk and clock.

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::life::{Site, processor_time};
use crate::support::{Client, Origin, PATIENCE, TempFile, metric, wait_until};

const CACHED: &str = "routes: [{ to: { proxy: app }, cache: {} }]\n";

/// A library that stands in front of the system's, where its package puts it.
fn library(package: &str, name: &str) -> String {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = folders.chain([PathBuf::from("/usr/lib")]).map(|folder| folder.join(name)).find(|path| path.exists());
    let found = found.unwrap_or_else(|| panic!("{name} is not there; `make chaos` installs it ({package})"));
    found.to_str().unwrap().to_owned()
}

pub fn name_gone() -> String {
    let origin = Origin::start();
    let hosts = TempFile::new("hosts", "127.0.0.1 app.test\n");
    let site = Site::new(&format!("app.test:{}", origin.port), "", "routes: [{ to: { proxy: app } }]\n");
    let mut command = site.command();
    command.env("LD_PRELOAD", library("libnss-wrapper", "libnss_wrapper.so")).env("NSS_WRAPPER_HOSTS", &hosts.0);
    let site = site.run(&mut command);
    site.get("/x").whole(200);
    // It looks at whole seconds of the file's time.
    let write = |text: &str, seconds: u64| {
        std::fs::write(&hosts.0, text).unwrap();
        let file = std::fs::File::options().write(true).open(&hosts.0).unwrap();
        file.set_modified(std::time::SystemTime::now() + Duration::from_secs(seconds)).unwrap();
    };
    write("127.0.0.1 other.test\n", 10);
    let gone = Instant::now();
    let mut served = 0;
    let (failed_after, took) = loop {
        let since = Instant::now();
        let reply = site.get("/x");
        if reply.status != 200 {
            assert_eq!(reply.status, 502);
            break (gone.elapsed(), since.elapsed());
        }
        served += 1;
        assert!(since.elapsed() < Duration::from_secs(1), "nobody waits for the resolver");
        assert!(gone.elapsed() < Duration::from_secs(100), "known for too long");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(failed_after > Duration::from_secs(45), "given up after {failed_after:?}");
    assert!(took < Duration::from_secs(1), "the 502 took {took:?}");
    write("127.0.0.1 app.test\n", 200);
    let back = Instant::now();
    wait_until(|| site.get("/x").status == 200);
    format!(
        "{served} answers in {:.0} s, then 502 in {} ms; {:.1} s after it was back: 200",
        failed_after.as_secs_f64(),
        took.as_millis(),
        back.elapsed().as_secs_f64()
    )
}

pub fn no_descriptors() -> String {
    let origin = Origin::start();
    let site = Site::new(&format!("127.0.0.1:{}", origin.port), "", CACHED);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 300; exec \"$@\"", "sh"]).args(site.words());
    let site = site.run(&mut command);
    let stored = "/stored?h.Cache-Control=max-age=600";
    let mut kept = Client::to(site.address);
    let mut ask = |times: usize| {
        for _ in 0..times {
            kept.request("GET", stored, "");
            kept.response("GET").whole(200);
        }
    };
    ask(1);
    let crowd: Vec<_> = (0..400).map(|_| Client::to(site.address)).collect();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", site.id())).unwrap().count();
    wait_until(|| descriptors() >= 110);
    ask(100);
    let (before, since) = (processor_time(site.id()), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let busy = (processor_time(site.id()) - before) / since.elapsed().as_secs_f64();
    assert!(busy < 0.3, "{:.0} % of a processor for nothing", busy * 100.0);
    let mut late = Client::to(site.address);
    // It may be refused before it has asked.
    let _ = late.tcp.write_all(b"GET /late HTTP/1.1\r\nHost: site.test\r\n\r\n");
    late.tcp.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let waits = match late.tcp.read(&mut [0; 1]) {
        Ok(1..) => panic!("there was room for one more of 400"),
        Ok(0) => false,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    ask(100);
    let held = descriptors();
    drop(crowd);
    if waits {
        late.tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        late.response("GET").whole(200);
    }
    wait_until(|| descriptors() < 100);
    site.get("/new").whole(200);
    let late = if waits { "waits" } else { "is refused" };
    format!(
        "{held} open, {:.0} % of a processor; 200 hits for who was connected, who comes late {late}; then all are served",
        busy * 100.0
    )
}

pub fn disk_full() -> String {
    let origin = Origin::start();
    let log = "log: { access: { file: /dev/full } }\n";
    let site = Site::new(&format!("127.0.0.1:{}", origin.port), log, CACHED);
    let mut command = site.command();
    let said = TempFile::new("said", "");
    let standard_error = std::fs::File::create(&said.0).unwrap();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(standard_error).spawn().unwrap();
    let site = site.is(child);
    let mut client = Client::to(site.address);
    for number in 0..300 {
        client.request("GET", &format!("/page?say={number}&h.Cache-Control=max-age=60"), "");
        assert_eq!(client.response("GET").whole(200).text(), number.to_string());
    }
    wait_until(|| metric(site.admin, "headwall_log_dropped_total") >= 300.0);
    let told = std::fs::read_to_string(&said.0).unwrap().lines().filter(|line| line.contains("access log")).count();
    assert_eq!(told, 1);
    "300 of 300 requests served, 300 lines counted as lost, told once".to_owned()
}

pub fn log_folder_gone() -> String {
    let origin = Origin::start();
    let folder =
        std::env::temp_dir().join(format!("headwall-chaos-{}-{}", std::process::id(), crate::support::free_port()));
    let away = folder.with_extension("away");
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("access.log");
    let site = Site::new(
        &format!("127.0.0.1:{}", origin.port),
        &format!("log: {{ access: {{ file: \"{}\" }} }}\n", log.display()),
        CACHED,
    );
    let mut command = site.command();
    let site = site.run(&mut command);
    let read = |folder: &Path| std::fs::read_to_string(folder.join("access.log")).unwrap_or_default();
    site.get("/one").whole(200);
    wait_until(|| read(&folder).contains("/one"));
    std::fs::rename(&folder, &away).unwrap();
    site.process().signal("USR1");
    // Whether the signal has been heard is only seen from what is not in the new file, which there is none of yet.
    for _ in 0..20 {
        site.get("/two").whole(200);
    }
    wait_until(|| read(&away).contains("/two"));
    std::fs::create_dir_all(&folder).unwrap();
    wait_until(|| {
        site.get("/three").whole(200);
        read(&folder).contains("/three")
    });
    let lost = metric(site.admin, "headwall_log_dropped_total");
    assert_eq!(lost, 0.0);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::remove_dir_all(&away).unwrap();
    "lines go on to the old file, then to the new one, without another signal; none is lost".to_owned()
}

pub fn clock_moves() -> String {
    let origin = Origin::start();
    let fake = TempFile::new("faketime", "+0\n");
    let routes = "routes:\n  - match: { prefix: /cache/ }\n    to: { kv: {} }\n  - match: { path: /clock }\n    to: { respond: {} }\n  - to: { proxy: app }\n    cache: {}\n";
    let site = Site::new(&format!("127.0.0.1:{}", origin.port), "", routes);
    let mut command = site.command();
    command
        .env("LD_PRELOAD", library("faketime", "faketime/libfaketime.so.1"))
        .env("FAKETIME_TIMESTAMP_FILE", &fake.0)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let site = site.run(&mut command);
    let real = Instant::now();
    // `Expires` is compared with the calendar when it comes, never afterwards.
    let in_ten_minutes =
        httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(600)).replace(' ', "%20");
    let long = ["/a?h.Cache-Control=max-age=600".to_owned(), format!("/b?h.Expires={in_ten_minutes}")];
    let short = "/c?h.Cache-Control=max-age=2";
    let put = |key: &str, ttl: u32| {
        let mut client = Client::to(site.address);
        client.request("PUT", &format!("/cache/{key}?ttl={ttl}"), "Content-Length: 1\r\n");
        client.send("x");
        client.response("PUT").whole(201);
    };
    put("long", 600);
    put("short", 2);
    site.get(short).whole(200);
    for target in &long {
        site.get(target).whole(200);
    }
    let mut ages = Vec::new();
    // The short ones end while the clock stands an hour back.
    for (shift, name) in [("+3600s", "ahead"), ("-3600s", "back"), ("+0", "right")] {
        std::fs::write(&fake.0, format!("{shift}\n")).unwrap();
        let moved = |reply: &crate::support::Response| {
            let date = httpdate::parse_http_date(reply.field("date")).unwrap();
            let now = std::time::SystemTime::now();
            let off = date.duration_since(now).map_or_else(|e| -(e.duration().as_secs_f64()), |d| d.as_secs_f64());
            let wanted: f64 = shift.trim_end_matches('s').parse().unwrap();
            (off - wanted).abs() < 60.0
        };
        wait_until(|| moved(&site.get("/clock")));
        if name == "back" {
            wait_until(|| real.elapsed() > Duration::from_secs(4));
            assert!(!site.get(short).whole(200).cache().contains("hit"), "{name}: it was fresh for two seconds");
            site.get("/cache/short").whole(404);
        }
        for target in &long {
            let reply = site.get(target).whole(200);
            let age: u64 = reply.field("age").parse().unwrap_or_else(|_| panic!("{name} {target}: {:?}", reply.fields));
            assert!(reply.cache().contains("hit"), "{name} {target}: {}", reply.cache());
            assert!(age <= real.elapsed().as_secs() + 1, "{name} {target}: an age of {age}");
            ages.push(age);
        }
        site.get("/cache/long").whole(200);
    }
    assert_eq!(origin.count("/a") + origin.count("/b"), 2);
    format!("ages {ages:?} with the calendar an hour ahead, back and right; what had ended did not come back")
}
