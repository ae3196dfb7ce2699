// Command server is the service that tests deploy: a static program whose environment
// decides whether it is healthy.
package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "test" { // -d DIR; see shiptest.Engine.Busybox
		if _, err := os.Stat(os.Args[len(os.Args)-1]); err != nil {
			os.Exit(1)
		}
		return
	}
	mode := os.Getenv("MODE")
	if len(os.Args) > 1 && os.Args[1] == "check" {
		if _, err := os.Stat("/data/broken"); err == nil || mode == "unhealthy" {
			os.Exit(1)
		}
		return
	}
	if mode == "crash" {
		os.Exit(3)
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	<-c
	if mode == "slow" {
		select {} // until Docker kills it
	}
}
