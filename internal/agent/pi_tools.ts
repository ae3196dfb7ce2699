// pi speaks no MCP: this offers it the tools of such a server.
const url = "URL";

async function ask(method, params, signal) {
  const res = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json, text/event-stream" },
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }),
    signal,
  });
  const text = await res.text();
  const event = text.split("\n").find((line) => line.startsWith("data: "));
  if (!res.ok || !event) throw new Error(`${method}: ${res.status} ${text.slice(0, 300)}`);
  const answer = JSON.parse(event.slice("data: ".length));
  if (answer.error) throw new Error(answer.error.message);
  return answer.result;
}

export default async function (pi) {
  const { tools } = await ask("tools/list", {});
  for (const tool of tools) {
    pi.registerTool({
      name: tool.name,
      label: tool.name,
      description: tool.description,
      parameters: tool.inputSchema,
      async execute(id, params, signal) {
        const result = await ask("tools/call", { name: tool.name, arguments: params }, signal);
        if (result.isError) throw new Error(result.content.map((c) => c.text).join("\n"));
        return { content: result.content, details: {} };
      },
    });
  }
}
