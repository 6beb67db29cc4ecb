// Command coredns is the DNS server of the test cluster: CoreDNS with the few plugins that it needs.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	// The order in which a query passes through the plugins, as in CoreDNS's own plugin.cfg.
	dnsserver.Directives = []string{"errors", "cache", "kubernetes"}
	coremain.Run()
}
