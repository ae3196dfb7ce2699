// Command program runs inside a container or virtual machine; see package agent.
package main

import (
	"os"

	"github.com/carboy/carboy/internal/guest/agent"
)

func main() { agent.Main(os.Args) }
