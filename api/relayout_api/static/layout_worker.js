import {layered} from "./layered.js";

self.onmessage = ({data: {id, nodes, links}}) => self.postMessage({id, placed: layered(nodes, links)});
