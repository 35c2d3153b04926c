//! A plugin of your own, its test, and the binary that has it.
//!
//!     cargo run --example hello_plugin -- run --config hello.yaml
//!
//! with, in hello.yaml:
//!
//!     routes:
//!       - to: { respond: { content: hi } }
//!         plugins: [{ hello: { to: World } }]

use std::sync::Arc;

use headwall::exchange::Exchange;
use headwall::http::HeaderValue;
use headwall::plugin::{Entry, Hooks, OnResponse, Plugin};
use headwall::{RequestHeader, ResponseHeader};

struct Hello(HeaderValue);

/// Greets somebody.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Who is greeted.
    to: String,
}

impl Plugin for Hello {
    const NAME: &'static str = "hello";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let value = settings.to.parse().map_err(|_| format!("`{}` cannot stand in a field", settings.to))?;
        Ok(Hooks::new().response(Arc::new(Hello(value))))
    }
}

impl OnResponse for Hello {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, _: &mut Exchange) {
        let _ = response.insert_header("X-Hello", self.0.clone());
    }
}

fn main() -> std::process::ExitCode {
    headwall::run(&[Entry::of::<Hello>()])
}

#[test]
fn greets() {
    let hello = headwall::testing::plugin_from("hello: { to: World }", &[Entry::of::<Hello>()]);
    assert_eq!(hello.visit("GET /").response("200", &[]).field("x-hello"), "World");
}
