//! `ip_filter`: lets clients in by their address, or keeps them out.
//!
//! ```yaml
//! ip_filter: { allow: [10.0.0.0/8, "2001:db8::/32"], deny: [10.66.0.0/16] }
//! ```
//!
//! `deny` goes first; where there is an `allow`, only its networks come in. Others get 403. The address
//! is the peer's, or the one that a proxy of `trust.proxies` names. A local peer that speaks for
//! somebody else (`X-Forwarded-For`, `X-Real-IP`, `Via` and their like) without being trusted never fits an `allow`.
//!
//! On a cached route the address is looked at for each request, hits included, before the store is
//! asked; what is stored is the same for all who come in.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::handler::Reply;
use crate::plugin::{Hooks, OnRequest, Plugin};
use crate::units::Network;

/// Lets clients in by their address, or keeps them out.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct Settings {
    /// Networks that come in; everybody when absent.
    pub allow: Option<Vec<Network>>,
    /// Networks that do not, whatever `allow` says.
    pub deny: Vec<Network>,
}

/// The plugin.
pub struct IpFilter(Settings);

impl Plugin for IpFilter {
    const NAME: &'static str = "ip_filter";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        if settings.deny.is_empty() && settings.allow.as_ref().is_none_or(Vec::is_empty) {
            return Err("name a network, such as allow: [10.0.0.0/8] or deny: [192.0.2.0/24]".into());
        }
        Ok(Hooks::new().request(Arc::new(IpFilter(settings))))
    }
}

fn has(networks: &[Network], client: IpAddr) -> bool {
    networks.iter().any(|network| network.0.contains(&client))
}

#[async_trait]
impl OnRequest for IpFilter {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        let client = exchange.client;
        let known = || !exchange.speaks_for_others(&request.headers);
        let allowed = self.0.allow.as_ref().is_none_or(|networks| known() && has(networks, client));
        let refused = !allowed || has(&self.0.deny, client);
        refused.then(|| Reply::text(403, "this client may not come in here"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin};

    #[tokio::test]
    async fn deny_goes_before_allow() {
        let plugin = example(include_str!("ip_filter.rs"));
        for (client, comes_in) in [
            ("10.1.2.3", true),
            ("10.66.0.1", false),
            ("192.0.2.1", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
        ] {
            let answer = plugin.visit("GET /").from(client).answer().await;
            assert_eq!(answer.map(|answer| answer.status()), (!comes_in).then_some(403), "{client}");
        }
    }

    #[tokio::test]
    async fn a_local_proxy_does_not_make_its_clients_local() {
        let local = plugin("ip_filter: { allow: [127.0.0.0/8] }");
        assert!(local.visit("GET /").answer().await.is_none());
        assert!(local.visit("GET /\nX-Forwarded-For: 192.0.2.1").answer().await.is_some());
        let deny = plugin("ip_filter: { deny: [192.0.2.0/24] }");
        assert!(deny.visit("GET /\nX-Forwarded-For: 192.0.2.1").answer().await.is_none(), "nobody believes it");
        assert!(complaint("ip_filter: {}").message.contains("name a network"));
        assert!(complaint("ip_filter: { allow: [] }").message.contains("name a network"));
    }
}
